# libtorch out of the Python registry's wheel, which may have CUDA, under the names of
# find_package(Torch): target `torch`, Torch_FOUND, Torch_VERSION. Its own TorchConfig.cmake wants
# nvcc and the whole CUDA Toolkit; we compile no device code, so headers and libraries are enough.
# Sets FORESAIL_TORCH_HAS_CUDA and FORESAIL_WHEEL_CUDA_INCLUDE.
set(foresail_torch_dir ${FORESAIL_TORCH_WHEEL}/torch)
if(NOT EXISTS ${foresail_torch_dir}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "FORESAIL_TORCH_WHEEL: ${foresail_torch_dir}/lib/libtorch_cpu.so: not there")
endif()
file(STRINGS ${foresail_torch_dir}/version.py foresail_torch_version REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" Torch_VERSION "${foresail_torch_version}")
set(Torch_FOUND TRUE)
set(FORESAIL_TORCH_HAS_CUDA FALSE)
set(foresail_torch_libraries torch torch_cpu c10)
file(GLOB FORESAIL_WHEEL_CUDA_INCLUDE
  ${FORESAIL_TORCH_WHEEL}/nvidia/cu1[0-9]/include
  ${FORESAIL_TORCH_WHEEL}/nvidia/cuda_runtime/include
  ${FORESAIL_TORCH_WHEEL}/nvidia/cu[bs][lop]*/include)
if(EXISTS ${foresail_torch_dir}/lib/libc10_cuda.so AND FORESAIL_WHEEL_CUDA_INCLUDE)
  set(FORESAIL_TORCH_HAS_CUDA TRUE)
  list(APPEND foresail_torch_libraries torch_cuda c10_cuda)
  # cudart itself: our calls and libtorch's must be in one copy.
  file(GLOB foresail_cudart
    ${FORESAIL_TORCH_WHEEL}/nvidia/cu1[0-9]/lib/libcudart.so.*
    ${FORESAIL_TORCH_WHEEL}/nvidia/cuda_runtime/lib/libcudart.so.*)
endif()
add_library(torch INTERFACE IMPORTED GLOBAL)
target_include_directories(torch SYSTEM INTERFACE
  ${foresail_torch_dir}/include ${foresail_torch_dir}/include/torch/csrc/api/include
  ${FORESAIL_WHEEL_CUDA_INCLUDE})
# The wheel brings fmt's headers, newer than the system's, without its library.
target_compile_definitions(torch INTERFACE FMT_HEADER_ONLY=1)
# libtorch_cuda registers its kernels when it is loaded; nothing refers to it by name.
target_link_options(torch INTERFACE LINKER:--no-as-needed)
foreach(library IN LISTS foresail_torch_libraries)
  target_link_libraries(torch INTERFACE ${foresail_torch_dir}/lib/lib${library}.so)
endforeach()
target_link_libraries(torch INTERFACE ${foresail_cudart})
