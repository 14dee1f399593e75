# Precompiled headers: what a build spends most of its time on is LibTorch's and GoogleTest's headers.
#
#   elixir_precompile(TARGET SET)   SET is torch, tests or torch_tests
#
# A set is compiled once for libraries and once for programs, since GCC takes one only where the code
# model is equal (-fPIC, -fPIE), and whatever uses it must have elixir_options alone as its options.
# Sources must go on to include what they use: ELIXIR_PRECOMPILED_HEADERS=OFF shows whether they do.
#
# Tests are compiled without optimisation, in half the time, and their sets with them: what they test is
# in libraries.
option(ELIXIR_PRECOMPILED_HEADERS "Compile LibTorch's and GoogleTest's headers once" ON)

set(_precompiled_torch <ATen/ATen.h> <torch/csrc/autograd/variable.h> <fmt/format.h>)
set(_precompiled_tests <gtest/gtest.h> <gmock/gmock.h> <nlohmann/json.hpp> <fmt/format.h>)
set(_precompiled_torch_tests ${_precompiled_torch} <torch/nn/module.h> ${_precompiled_tests})
set(_precompiled_options_tests -O0)
set(_precompiled_options_torch_tests -O0)
set(_precompiled_links_torch LibTorch::cpu fmt::fmt)
set(_precompiled_links_tests GTest::gtest GTest::gmock nlohmann_json::nlohmann_json fmt::fmt)
set(_precompiled_links_torch_tests ${_precompiled_links_torch} ${_precompiled_links_tests})

# The target that compiles the set for targets like `target`; made when it is first asked for.
function(_elixir_precompiled_owner owner target set)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set(name elixir_precompiled_${set}_in_programs)
  else()
    set(name elixir_precompiled_${set}_in_libraries)
  endif()
  set(${owner} ${name} PARENT_SCOPE)
  if(TARGET ${name})
    return()
  endif()
  set(source ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  if(type STREQUAL "EXECUTABLE")
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/generated)
  else()
    add_library(${name} OBJECT ${source})
  endif()
  target_link_libraries(${name} PRIVATE elixir_options ${_precompiled_links_${set}})
  # ccache must see from the preprocessed source which header was used.
  target_compile_options(${name} PRIVATE ${_precompiled_options_${set}} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_precompile_headers(${name} PRIVATE ${_precompiled_${set}})
endfunction()

function(elixir_precompile target set)
  target_compile_options(${target} PRIVATE ${_precompiled_options_${set}})
  if(NOT ELIXIR_PRECOMPILED_HEADERS)
    return()
  endif()
  _elixir_precompiled_owner(owner ${target} ${set})
  # GCC takes the header only where the libraries' definitions are equal, too.
  target_link_libraries(${target} PRIVATE ${_precompiled_links_${set}})
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()
