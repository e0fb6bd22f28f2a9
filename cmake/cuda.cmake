# The CUDA execution module (exec/cuda, exec/ops and st_exec_ranks): CUDA streams, NCCL and the LibTorch of a pip
# wheel. STEPTWIN_CUDA AUTO: built when nvcc, NCCL and such a wheel are found; ON: an error when one is missing; OFF: never.
# The wheel: STEPTWIN_TORCH_DIR (its torch folder), else what python3 imports. Debian's libtorch cannot serve: it has no CUDA.
set(STEPTWIN_CUDA_SKIPPED "")
if(STEPTWIN_CUDA STREQUAL "OFF")
  return()
endif()

function(steptwin_no_cuda reason)
  if(STEPTWIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "STEPTWIN_CUDA=ON but ${reason}")
  endif()
  message(STATUS "CUDA build skipped: ${reason}")
endfunction()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  steptwin_no_cuda("nvcc was not found: install the CUDA 13 toolkit, or set CMAKE_CUDA_COMPILER")
  return()
endif()
if(NOT STEPTWIN_TORCH_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_Interpreter_FOUND)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import torch, os; print(os.path.dirname(torch.__file__))" OUTPUT_VARIABLE torch_dir
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
else()
  set(torch_dir ${STEPTWIN_TORCH_DIR})
endif()
if(NOT torch_dir OR NOT EXISTS ${torch_dir}/lib/libtorch_cuda.so)
  steptwin_no_cuda("no torch wheel with CUDA was found: pip install torch==2.11.0, or set STEPTWIN_TORCH_DIR to its torch folder (scripts/cuda-wheel.sh fetches one)")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)  # A100, H100 and H200; newer devices compile the PTX of the last
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${torch_dir}/../nvidia/nccl/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${torch_dir}/../nvidia/nccl/lib)
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  steptwin_no_cuda("NCCL was not found: install libnccl-dev, or set NCCL_INCLUDE_DIR and NCCL_LIBRARY")
  return()
endif()

# The core runs a schedule on streams and knows no torch; the module adds LibTorch's layers and the door.
file(GLOB core_sources CONFIGURE_DEPENDS exec/cuda/*.cpp exec/cuda/*.cu)
list(FILTER core_sources EXCLUDE REGEX "exec/cuda/(cuda_parts|module_entry)\\.cpp$")
file(GLOB layer_sources CONFIGURE_DEPENDS exec/ops/*.cpp)
list(FILTER layer_sources EXCLUDE REGEX "exec/ops/cpu_")
# Kernels are C++17: CMake 3.25 does not know that nvcc 13 speaks C++20.
add_library(steptwin_cuda_core STATIC ${core_sources})
set_target_properties(steptwin_cuda_core PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 17)
target_include_directories(steptwin_cuda_core PUBLIC ${CMAKE_SOURCE_DIR})
target_include_directories(steptwin_cuda_core SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE_DIR})
target_compile_options(steptwin_cuda_core PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-maybe-uninitialized>")
target_link_libraries(steptwin_cuda_core PUBLIC $<TARGET_FILE:st_exec_ranks> $<TARGET_FILE:st_exec> $<TARGET_FILE:st_traces> $<TARGET_FILE:st_ir> $<TARGET_FILE:st_base> fmt::fmt
                      SQLite::SQLite3 CUDA::cudart ${NCCL_LIBRARY} Threads::Threads)
add_dependencies(steptwin_cuda_core st_exec_ranks st_exec st_traces st_ir st_base)

add_library(steptwin_cuda SHARED ${layer_sources} exec/cuda/cuda_parts.cpp exec/cuda/module_entry.cpp exec/comm/tcp_store.cpp
            exec/cpu/plain_model.cpp)
set_target_properties(steptwin_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      BUILD_RPATH "${torch_dir}/lib;${torch_dir}/../nvidia/cu13/lib;${torch_dir}/../nvidia/nccl/lib")
target_include_directories(steptwin_cuda SYSTEM PRIVATE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_compile_options(steptwin_cuda PRIVATE -Wall -Wextra -Wno-maybe-uninitialized)
# The wheel brings an fmt of its own among its headers; header-only, whichever is found first.
target_compile_definitions(steptwin_cuda PRIVATE USE_CUDA FMT_HEADER_ONLY)
# The wheel's own dependencies (cuDNN, cuSPARSELt, ...) need not be on the build machine.
target_link_options(steptwin_cuda PRIVATE -Wl,--no-as-needed -Wl,--unresolved-symbols=ignore-in-shared-libs)
target_link_libraries(steptwin_cuda PRIVATE steptwin_cuda_core ${torch_dir}/lib/libtorch.so ${torch_dir}/lib/libtorch_cpu.so
                      ${torch_dir}/lib/libtorch_cuda.so ${torch_dir}/lib/libc10.so ${torch_dir}/lib/libc10_cuda.so)
