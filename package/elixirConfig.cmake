# elixir::elixir, for a project that links one of the LibTorch versions that Elixir was installed for: the one
# that the project itself has found (find_package(Torch)), else what FindLibTorch.cmake finds.

file(GLOB _elixir_built_for RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/torch*)
list(SORT _elixir_built_for COMPARE NATURAL)
list(TRANSFORM _elixir_built_for REPLACE "^torch([0-9])" "\\1.")
list(JOIN _elixir_built_for ", " _elixir_needs)
if(TARGET torch)
  set(_elixir_libtorch ${TORCH_LIBRARIES})
  set(_elixir_has ${Torch_VERSION})
else()
  list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_package(LibTorch QUIET)
  list(POP_FRONT CMAKE_MODULE_PATH)
  set(_elixir_libtorch LibTorch::cpu)
  set(_elixir_has ${LibTorch_VERSION})
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _elixir_minor "${_elixir_has}")
string(REPLACE "." "" _elixir_folder "torch${_elixir_minor}")

if(_elixir_has AND NOT EXISTS ${CMAKE_CURRENT_LIST_DIR}/${_elixir_folder}/elixirTargets.cmake)
  set(elixir_NOT_FOUND_MESSAGE "Elixir: have torch '${_elixir_has}', need one of those that this Elixir was built \
for (${_elixir_needs}): install one of them (LIBTORCH_ROOT names its torch folder), or build Elixir for yours \
(scripts/build.sh --torch) and install it here, too")
elseif(NOT TARGET torch AND NOT LibTorch_FOUND)
  set(elixir_NOT_FOUND_MESSAGE "Elixir: ${LibTorch_NOT_FOUND_MESSAGE}; or call find_package(Torch) before")
endif()
if(elixir_NOT_FOUND_MESSAGE)
  set(elixir_FOUND FALSE)
  return()
endif()

if(NOT TARGET elixir::libtorch)
  add_library(elixir::libtorch INTERFACE IMPORTED)
  target_link_libraries(elixir::libtorch INTERFACE ${_elixir_libtorch})
endif()
include(${CMAKE_CURRENT_LIST_DIR}/${_elixir_folder}/elixirTargets.cmake)
