# foresail-worker: the one executable that links the runtime. Included by CMakeLists.txt where
# libtorch and Gloo were found.
add_library(foresail_worker_core STATIC
  src/worker_calibrate.cpp src/worker_environment.cpp src/worker_job.cpp src/worker_launch.cpp
  src/worker_measure.cpp src/worker_run.cpp)
target_include_directories(foresail_worker_core PUBLIC ${CMAKE_CURRENT_LIST_DIR}/src)
target_link_libraries(foresail_worker_core
  PUBLIC foresail::planner foresail::runtime
  PRIVATE fmt::fmt foresail_warnings)
target_compile_definitions(foresail_worker_core PRIVATE FORESAIL_VERSION="${PROJECT_VERSION}")
add_executable(foresail-worker src/worker_main.cpp)
target_link_libraries(foresail-worker PRIVATE
  foresail_worker_core CLI11::CLI11 fmt::fmt foresail_warnings)
install(TARGETS foresail-worker)
