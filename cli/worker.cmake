# foresail-worker: the one executable that links the runtime. Included by CMakeLists.txt where
# libtorch and Gloo were found.
find_package(CLI11 REQUIRED)
set(worker_src ${CMAKE_CURRENT_LIST_DIR}/src)
add_library(foresail_worker_core STATIC
  ${worker_src}/option_checks.cpp ${worker_src}/output_checks.cpp
  ${worker_src}/worker_calibrate.cpp ${worker_src}/worker_data.cpp
  ${worker_src}/worker_devices.cpp
  ${worker_src}/worker_environment.cpp ${worker_src}/worker_hang.cpp
  ${worker_src}/worker_job.cpp
  ${worker_src}/worker_launch.cpp ${worker_src}/worker_measure.cpp
  ${worker_src}/worker_metrics.cpp ${worker_src}/worker_rendezvous.cpp
  ${worker_src}/worker_run.cpp ${worker_src}/worker_start.cpp ${worker_src}/worker_store.cpp
  ${worker_src}/worker_weights.cpp)
target_include_directories(foresail_worker_core PUBLIC ${worker_src})
target_link_libraries(foresail_worker_core
  PUBLIC foresail::planner foresail::runtime foresail::scenarios
  PRIVATE fmt::fmt foresail_warnings)
target_compile_definitions(foresail_worker_core PRIVATE FORESAIL_VERSION="${PROJECT_VERSION}")
add_executable(foresail-worker ${worker_src}/worker_main.cpp)
target_link_libraries(foresail-worker PRIVATE
  foresail_worker_core CLI11::CLI11 fmt::fmt foresail_warnings)
install(TARGETS foresail-worker)
