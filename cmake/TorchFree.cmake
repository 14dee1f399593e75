# One build for each torch, and one of what links no LibTorch.
#
# The first build exports its targets without LibTorch to torch_free.cmake. A build for another torch
# (scripts/build.sh --torch) names the first one's folder as ELIXIR_TORCH_FREE_FROM: it takes those targets and
# their programs from there, and has those with LibTorch alone.
set(ELIXIR_TORCH_FREE_FROM "" CACHE PATH
    "The folder of a build of the same sources and options, from which all that links no LibTorch is taken")

if(ELIXIR_TORCH_FREE_FROM)
  if(NOT EXISTS ${ELIXIR_TORCH_FREE_FROM}/torch_free.cmake)
    message(FATAL_ERROR "ELIXIR_TORCH_FREE_FROM=${ELIXIR_TORCH_FREE_FROM} has no torch_free.cmake: name the folder of a "
        "configured build with LibTorch, such as build/release")
  endif()
  include(${ELIXIR_TORCH_FREE_FROM}/torch_free.cmake)
  file(GLOB _programs ${ELIXIR_TORCH_FREE_FROM}/bin/*)  # which libelixir.so and tests find in bin/
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  foreach(_program IN LISTS _programs)
    get_filename_component(_name ${_program} NAME)
    file(CREATE_LINK ${_program} ${PROJECT_BINARY_DIR}/bin/${_name} SYMBOLIC)
  endforeach()
  set_target_properties(elixir_options PROPERTIES SYSTEM OFF)  # it has Elixir's own sources, not another's headers
endif()

# Whether the target links LibTorch, itself or through another one.
function(elixir_links_torch result target)
  set(${result} FALSE PARENT_SCOPE)
  if(target MATCHES "^LibTorch::")
    set(${result} TRUE PARENT_SCOPE)
    return()
  endif()
  get_property(known GLOBAL PROPERTY ELIXIR_LINKS_TORCH_${target})
  if(NOT "${known}" STREQUAL "")
    set(${result} ${known} PARENT_SCOPE)
    return()
  endif()
  set(found FALSE)
  set(linked "")
  foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(libraries ${target} ${property})
    if(libraries)
      list(APPEND linked ${libraries})
    endif()
  endforeach()
  foreach(library IN LISTS linked)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
    if(TARGET "${library}" OR library MATCHES "^LibTorch::")
      elixir_links_torch(found ${library})
    endif()
    if(found)
      break()
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY ELIXIR_LINKS_TORCH_${target} ${found})
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# To be called when all targets are there. `torch_free` builds what a build for another torch takes.
function(elixir_export_torch_free)
  get_property(targets GLOBAL PROPERTY ELIXIR_TARGETS)
  set(free elixir_options)
  foreach(target IN LISTS targets)
    elixir_links_torch(links ${target})
    if(NOT links)
      list(APPEND free ${target})
    endif()
  endforeach()
  export(TARGETS ${free} FILE ${PROJECT_BINARY_DIR}/torch_free.cmake)
  list(REMOVE_ITEM free elixir_options)
  add_custom_target(torch_free DEPENDS ${free} elixir_base_object)
endfunction()
