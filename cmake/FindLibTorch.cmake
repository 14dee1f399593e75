# LibTorch from PyTorch's own wheel. Makes two targets:
#   LibTorch::cpu   libtorch_cpu and libc10: a program linked so never loads CUDA
#   LibTorch::cuda  adds libtorch_cuda and libc10_cuda, where the wheel has them
# torch's own find_package(Torch) insists on a CUDA toolkit, hence this file. It is installed, too.
#
# LIBTORCH_ROOT: the wheel's torch folder. Default: the torch of ELIXIR_TORCH_OF_PYTHON, an interpreter, if it is
# set; else the first of
#   1. that of CMAKE_PREFIX_PATH, which may name the folder, or what torch.utils.cmake_prefix_path is
#   2. the torch of the active virtual environment (VIRTUAL_ENV)
#   3. the torch of the project's .venv
#   4. python3's torch
# The first that is found is taken, whatever its version: one that does not fit is an error, so that
# nobody gets another torch than the one that runs.

# The releases that Elixir is built and tested with.
set(ELIXIR_OLDEST_TORCH 2.11)
set(ELIXIR_NEWEST_TORCH 2.15)

# The folder of a Python's torch; "": it has none. Imports nothing.
function(_elixir_torch_of result python)
  set(${result} "" PARENT_SCOPE)
  execute_process(
      COMMAND ${python} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(${result} "${folder}" PARENT_SCOPE)
  endif()
endfunction()

if(NOT LIBTORCH_ROOT)
  set(_candidates "")
  if(ELIXIR_TORCH_OF_PYTHON)
    _elixir_torch_of(_candidates ${ELIXIR_TORCH_OF_PYTHON})
  endif()
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND _candidates ${_prefix} ${_prefix}/../..)
  endforeach()
  foreach(_venv "$ENV{VIRTUAL_ENV}" ${PROJECT_SOURCE_DIR}/.venv)
    if(_venv)
      file(GLOB _of_venv ${_venv}/lib/python3*/site-packages/torch)
      list(APPEND _candidates ${_of_venv})
    endif()
  endforeach()
  list(APPEND _candidates python3)
  foreach(_candidate IN LISTS _candidates)
    if(_candidate STREQUAL "python3" AND NOT LIBTORCH_ROOT)
      _elixir_torch_of(_candidate python3)
    endif()
    if(_candidate AND EXISTS ${_candidate}/include/ATen/ATen.h AND NOT LIBTORCH_ROOT)
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
set(LibTorch_VERSION "")
if(EXISTS ${LIBTORCH_ROOT}/version.py)
  file(STRINGS ${LIBTORCH_ROOT}/version.py _line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${_line}")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" LibTorch_MINOR "${LibTorch_VERSION}")
# In lib/: libraries that were built for this torch.
string(REPLACE "." "" ELIXIR_TORCH_FOLDER "torch${LibTorch_MINOR}")

# "": nothing is wrong.
function(_elixir_judge_torch result)
  set(${result} "" PARENT_SCOPE)
  if(NOT LibTorch_INCLUDE_DIR OR NOT LibTorch_CPU_LIBRARY OR NOT LibTorch_C10_LIBRARY)
    set(${result} "no LibTorch is found in LIBTORCH_ROOT (${LIBTORCH_ROOT}), CMAKE_PREFIX_PATH, the active \
virtual environment, .venv and python3: name the torch folder of PyTorch's wheel with \
-DLIBTORCH_ROOT=.../site-packages/torch (in Elixir's own repository scripts/setup.sh installs it into .venv)"
        PARENT_SCOPE)
  elseif(NOT LibTorch_MINOR OR LibTorch_MINOR VERSION_LESS ELIXIR_OLDEST_TORCH
         OR LibTorch_MINOR VERSION_GREATER ELIXIR_NEWEST_TORCH)
    set(${result} "have torch '${LibTorch_VERSION}' (${LIBTORCH_ROOT}), need ${ELIXIR_OLDEST_TORCH} to \
${ELIXIR_NEWEST_TORCH}: pip install torch==${ELIXIR_NEWEST_TORCH}.0, or name another torch folder with \
-DLIBTORCH_ROOT=.../site-packages/torch" PARENT_SCOPE)
  endif()
endfunction()
_elixir_judge_torch(LibTorch_NOT_FOUND_MESSAGE)

if(LibTorch_NOT_FOUND_MESSAGE)
  set(LibTorch_FOUND FALSE)
  if(LibTorch_FIND_REQUIRED)
    message(FATAL_ERROR "Elixir: ${LibTorch_NOT_FOUND_MESSAGE}")
  endif()
  return()
endif()
set(LibTorch_FOUND TRUE)
if(NOT LibTorch_FIND_QUIETLY AND NOT TARGET LibTorch::cpu)
  message(STATUS "LibTorch: ${LibTorch_VERSION} (${LIBTORCH_ROOT})")
endif()

if(NOT TARGET LibTorch::cpu)
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
