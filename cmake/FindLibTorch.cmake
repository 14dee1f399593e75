# LibTorch from PyTorch's own wheel. Makes two targets:
#   LibTorch::cpu   libtorch_cpu and libc10: a program linked so never loads CUDA
#   LibTorch::cuda  adds libtorch_cuda and libc10_cuda, where the wheel has them
# torch's own find_package(Torch) insists on a CUDA toolkit, hence this file. It is installed, too.
#
# LIBTORCH_ROOT: the wheel's torch folder; default: that of CMAKE_PREFIX_PATH (which may name the
# folder, or what torch.utils.cmake_prefix_path is), else of the project's .venv.
if(NOT LIBTORCH_ROOT)
  file(GLOB _candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
    list(PREPEND _candidates ${_prefix} ${_prefix}/../..)
  endforeach()
  foreach(_candidate IN LISTS _candidates)
    if(EXISTS ${_candidate}/include/ATen/ATen.h AND NOT LIBTORCH_ROOT)
      get_filename_component(LIBTORCH_ROOT ${_candidate} ABSOLUTE)
    endif()
  endforeach()
  set(LIBTORCH_ROOT "${LIBTORCH_ROOT}" CACHE PATH "The torch folder of the wheel" FORCE)
endif()

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h PATHS ${LIBTORCH_ROOT}/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
if(EXISTS ${LIBTORCH_ROOT}/version.py)
  file(STRINGS ${LIBTORCH_ROOT}/version.py _line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
    REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
    VERSION_VAR LibTorch_VERSION
    REASON_FAILURE_MESSAGE "name the torch folder of PyTorch's wheel: -DLIBTORCH_ROOT=.../site-packages/torch \
(in Elixir's own repository scripts/setup.sh installs it into .venv)")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
      ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::cpu INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})
  # Programs find it where it is; a library is loaded into one that has.
  target_link_options(LibTorch::cpu INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:LINKER:-rpath,${LIBTORCH_ROOT}/lib>)
  if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY)
    add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(LibTorch::cuda INTERFACE
        LibTorch::cpu ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA_LIBRARY})
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY
                 LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)
