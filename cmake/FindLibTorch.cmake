# LibTorch from PyTorch's own wheel. Makes two targets:
#   LibTorch::cpu   libtorch_cpu and libc10: a program linked so never loads CUDA
#   LibTorch::cuda  adds libtorch_cuda and libc10_cuda, where the wheel has them
# torch's own find_package(Torch) insists on a CUDA toolkit, hence this file.
#
# LIBTORCH_ROOT: the wheel's torch folder; default: .venv of this repository.
if(NOT LIBTORCH_ROOT)
  file(GLOB _candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(POP_FRONT _candidates LIBTORCH_ROOT)
  set(LIBTORCH_ROOT "${LIBTORCH_ROOT}" CACHE PATH "The torch folder of the wheel")
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
    REASON_FAILURE_MESSAGE "run scripts/setup.sh, which installs it into .venv")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED GLOBAL)
  # The wheel has fmt's headers of another version without its library: the system's come first.
  find_path(LibTorch_SYSTEM_FMT fmt/core.h PATHS /usr/include NO_DEFAULT_PATH REQUIRED)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated/system_fmt)
  file(CREATE_LINK ${LibTorch_SYSTEM_FMT}/fmt ${PROJECT_BINARY_DIR}/generated/system_fmt/fmt SYMBOLIC)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
      ${PROJECT_BINARY_DIR}/generated/system_fmt ${LibTorch_INCLUDE_DIR}
      ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::cpu INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})
  target_link_options(LibTorch::cpu INTERFACE "LINKER:-rpath,${LIBTORCH_ROOT}/lib")
  if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY)
    add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(LibTorch::cuda INTERFACE
        LibTorch::cpu ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA_LIBRARY})
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY
                 LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_SYSTEM_FMT)
