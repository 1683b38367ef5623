# What is built, and with what. AUTO takes a dependency if it is found, ON demands it, OFF
# ignores it.
#
#   FORESAIL_WITH_TORCH   libtorch, Gloo and hiredis: the runtime and foresail-worker
#   FORESAIL_WITH_CUDA    a libtorch with CUDA: streams, events and memory of devices
#   FORESAIL_WITH_NCCL    NCCL's header, against which our declarations are checked; the library
#                         is loaded at run time
#   FORESAIL_TORCH_WHEEL  folder into which pip installed torch (with torch/ and nvidia/), instead
#                         of the system's libtorch
#   FORESAIL_BUILD_PYTHON the Python extension (set by `pip install .`)
#   FORESAIL_BUILD_BENCH  the benchmarks in bench/
#
# Sets FORESAIL_HAS_{TORCH,CUDA,NCCL} and foresail_feature_summary(), which says what came of it.
foreach(feature TORCH CUDA NCCL)
  set(FORESAIL_WITH_${feature} AUTO CACHE STRING "AUTO, ON or OFF")
  set_property(CACHE FORESAIL_WITH_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT FORESAIL_WITH_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "FORESAIL_WITH_${feature}: \"${FORESAIL_WITH_${feature}}\" is not one of AUTO, ON, OFF")
  endif()
  set(FORESAIL_HAS_${feature} FALSE)
endforeach()
set(FORESAIL_TORCH_WHEEL "" CACHE PATH "folder into which pip installed torch")
option(FORESAIL_BUILD_PYTHON "Build the Python extension" OFF)
option(FORESAIL_BUILD_BENCH "Build the benchmarks" OFF)

# The first argument is the feature, the second what stands in the summary, the rest must all be
# true for the feature to be there.
macro(foresail_feature feature text)
  set(FORESAIL_HAS_${feature} TRUE)
  foreach(foresail_condition ${ARGN})
    if(NOT ${foresail_condition})
      set(FORESAIL_HAS_${feature} FALSE)
    endif()
  endforeach()
  set(foresail_text_${feature} "${text}")
  if(FORESAIL_WITH_${feature} STREQUAL ON AND NOT FORESAIL_HAS_${feature})
    message(FATAL_ERROR "FORESAIL_WITH_${feature} is ON, but ${ARGN} is false: nothing was found")
  endif()
endmacro()

if(NOT FORESAIL_WITH_TORCH STREQUAL OFF)
  if(FORESAIL_TORCH_WHEEL)
    include(ForesailTorchWheel)
  else()
    find_package(Torch QUIET)
    set(FORESAIL_TORCH_HAS_CUDA FALSE)
  endif()
  find_package(Gloo QUIET)
  find_path(HIREDIS_INCLUDE_DIR hiredis/hiredis.h)
  find_library(HIREDIS_LIBRARY hiredis)
  mark_as_advanced(HIREDIS_INCLUDE_DIR HIREDIS_LIBRARY)
  foresail_feature(TORCH "libtorch ${Torch_VERSION}, Gloo ${Gloo_VERSION}, hiredis"
    Torch_FOUND Gloo_FOUND HIREDIS_INCLUDE_DIR HIREDIS_LIBRARY)
endif()
if(NOT FORESAIL_WITH_CUDA STREQUAL OFF)
  foresail_feature(CUDA "libtorch ${Torch_VERSION}" FORESAIL_HAS_TORCH FORESAIL_TORCH_HAS_CUDA)
endif()
if(NOT FORESAIL_WITH_NCCL STREQUAL OFF)
  find_package(CUDAToolkit QUIET)
  find_path(FORESAIL_CUDA_INCLUDE_DIR cuda_runtime.h
    HINTS ${FORESAIL_WHEEL_CUDA_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  find_path(NCCL_INCLUDE_DIR nccl.h
    HINTS ${FORESAIL_TORCH_WHEEL}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(NCCL_INCLUDE_DIR FORESAIL_CUDA_INCLUDE_DIR)
  foresail_feature(NCCL "header in ${NCCL_INCLUDE_DIR}" NCCL_INCLUDE_DIR FORESAIL_CUDA_INCLUDE_DIR)
endif()

function(foresail_feature_summary)
  message(STATUS "Foresail ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  foreach(feature TORCH CUDA NCCL)
    if(FORESAIL_HAS_${feature})
      message(STATUS "  ${feature}: ${foresail_text_${feature}}")
    elseif(FORESAIL_WITH_${feature} STREQUAL OFF)
      message(STATUS "  ${feature}: off")
    else()
      message(STATUS "  ${feature}: not found")
    endif()
  endforeach()
  if(FORESAIL_HAS_TORCH)
    message(STATUS "  runtime and foresail-worker: built; stages compute on CPUs")
  else()
    message(STATUS "  runtime and foresail-worker: not built (they need libtorch and Gloo)")
  endif()
  message(STATUS "  Python extension: ${FORESAIL_BUILD_PYTHON}")
  message(STATUS "  benchmarks: ${FORESAIL_BUILD_BENCH}")
endfunction()
