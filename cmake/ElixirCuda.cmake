# CUDA, where an nvcc is found. Sets ELIXIR_WITH_CUDA to ON or OFF, and with ON enables the language
# and makes
#   ElixirCuda::cudart   CUDA's headers and the runtime library that LibTorch itself loads
#   elixir_gpu_test()    a test that needs a GPU
#
# ELIXIR_WITH_CUDA: AUTO (an nvcc is found and ELIXIR_WITH_TORCH is ON), ON (an error without nvcc), OFF.
# The nvcc is one of CUDA 13, as LibTorch's wheel is: CMAKE_CUDA_COMPILER, CUDACXX, the PATH's,
# /usr/local/cuda's, or that of the wheels which scripts/setup.sh puts into .venv.
set(ELIXIR_WITH_CUDA AUTO CACHE STRING "Build what runs on CUDA devices: AUTO, ON, OFF")
set_property(CACHE ELIXIR_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(_cuda_major 13)

function(_elixir_is_nvcc ok candidate)
  execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(NOT version MATCHES "release ${_cuda_major}\\.")
    set(${ok} FALSE PARENT_SCOPE)
  endif()
endfunction()

file(GLOB _wheel_bins ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu${_cuda_major}/bin)
if(LIBTORCH_ROOT)
  list(PREPEND _wheel_bins ${LIBTORCH_ROOT}/../nvidia/cu${_cuda_major}/bin)
endif()
set(_nvcc_names nvcc)
if(CMAKE_CUDA_COMPILER)
  set(_nvcc_names ${CMAKE_CUDA_COMPILER})
elseif(DEFINED ENV{CUDACXX})
  set(_nvcc_names $ENV{CUDACXX})
endif()
find_program(ELIXIR_NVCC NAMES ${_nvcc_names} PATHS /usr/local/cuda/bin ${_wheel_bins}
    VALIDATOR _elixir_is_nvcc)
mark_as_advanced(ELIXIR_NVCC)

if(ELIXIR_WITH_CUDA STREQUAL "AUTO")
  if(NOT ELIXIR_WITH_TORCH)
    set(ELIXIR_WITH_CUDA OFF)
    message(STATUS "CUDA: left out, since ELIXIR_WITH_TORCH is OFF")
    return()
  elseif(NOT EXISTS ${LIBTORCH_ROOT}/../nvidia/nccl)
    set(ELIXIR_WITH_CUDA OFF)
    message(STATUS "CUDA: left out, since the torch in ${LIBTORCH_ROOT} has no NCCL beside it: it was installed for "
        "C++ on CPUs alone")
    return()
  elseif(NOT ELIXIR_NVCC)
    set(ELIXIR_WITH_CUDA OFF)
    message(STATUS "CUDA: left out, no nvcc of CUDA ${_cuda_major} (${_nvcc_names}) is found; "
        "scripts/setup.sh installs one into .venv")
    return()
  endif()
  set(ELIXIR_WITH_CUDA ON)
elseif(NOT ELIXIR_WITH_CUDA)
  message(STATUS "CUDA: left out, as ELIXIR_WITH_CUDA=${ELIXIR_WITH_CUDA} asks")
  return()
elseif(NOT ELIXIR_NVCC)
  message(FATAL_ERROR "ELIXIR_WITH_CUDA=ON but no nvcc of CUDA ${_cuda_major} (${_nvcc_names}) is in the "
      "PATH, /usr/local/cuda/bin or .venv; run scripts/setup.sh, or set CUDACXX to one")
endif()

# Machine code for Ampere, Hopper and GeForce Blackwell (and the minor versions above each). PTX of 9.0
# and not of 12.0: the driver compiles it for whatever lies between (B200 is 10.0) and beyond.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 120-real 90-virtual)
endif()
set(CMAKE_CUDA_COMPILER ${ELIXIR_NVCC})
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
# The wheels have lib/ where nvcc's own linking, which CMake tries, looks into lib64/.
get_filename_component(_nvcc_root ${ELIXIR_NVCC}/../.. ABSOLUTE)
set(ENV{LIBRARY_PATH} "${_nvcc_root}/lib:$ENV{LIBRARY_PATH}")
enable_language(CUDA)
# Not 20: under nvcc fmt 9, which base/status.h includes, does not compile as C++20, and CMake 3.25.1
# does not know that nvcc has it.
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
string(APPEND CMAKE_CUDA_FLAGS " -lineinfo")
# One runtime library a process: ElixirCuda::cudart, never a second one linked in.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)

find_library(ELIXIR_CUDART NAMES libcudart.so.${_cuda_major}
    PATHS ${LIBTORCH_ROOT}/../nvidia/cu${_cuda_major}/lib ${LIBTORCH_ROOT}/lib
          ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT} ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES}
    PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH)
mark_as_advanced(ELIXIR_CUDART)
if(NOT ELIXIR_CUDART)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${ELIXIR_NVCC}) is found, but "
      "libcudart.so.${_cuda_major} neither beside it nor in LibTorch's wheel; install "
      "nvidia-cuda-runtime, or configure with -DELIXIR_WITH_CUDA=OFF")
endif()
get_filename_component(_cudart_folder ${ELIXIR_CUDART} DIRECTORY)
if(NOT TARGET ElixirCuda::cudart)
  add_library(ElixirCuda::cudart INTERFACE IMPORTED GLOBAL)
  foreach(_folder IN LISTS CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES)
    target_include_directories(ElixirCuda::cudart SYSTEM INTERFACE ${_folder})
    if(EXISTS ${_folder}/cccl)  # nv/target, which cuda_fp16.h includes
      target_include_directories(ElixirCuda::cudart SYSTEM INTERFACE ${_folder}/cccl)
    endif()
  endforeach()
  target_link_libraries(ElixirCuda::cudart INTERFACE ${ELIXIR_CUDART})
  target_link_options(ElixirCuda::cudart INTERFACE "LINKER:-rpath,${_cudart_folder}")
endif()
message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${ELIXIR_NVCC}), ${ELIXIR_CUDART}")

# elixir_gpu_test(NAME SOURCES... LINK deps... [TIMEOUT s] [PRECOMPILED set]): an elixir_test with the label gpu. Where
# there is no GPU it says why and ctest counts it as skipped; with ELIXIR_REQUIRE_GPU=1 in the
# environment it fails instead.
function(elixir_gpu_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PRECOMPILED" "SOURCES;LINK" ${ARGN})
  elixir_test(${name} SOURCES ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/kernels/gpu_main.cpp
      LINK ${arg_LINK} ElixirCuda::cudart LABELS gpu TIMEOUT ${arg_TIMEOUT} PRECOMPILED ${arg_PRECOMPILED})
  set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
endfunction()
