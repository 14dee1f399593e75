# What every target of Elixir shares: warnings, includes rooted at the repository, sanitizers.

if(NOT ELIXIR_TORCH_FREE_FROM)  # else it is that build's
  include(ElixirOptions)
endif()

# What a program needs beyond what it links. REQUIRES: called for each executable.
function(elixir_executable name)
  if(ELIXIR_SANITIZE MATCHES "thread")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/thread_sanitizer.cpp)
  endif()
endfunction()

# For what computes much: the presets with sanitizers optimise nothing by themselves.
function(elixir_optimize name)
  if(ELIXIR_SANITIZE)
    target_compile_options(${name} PRIVATE -Og)
  endif()
endfunction()

# elixir_library(NAME SOURCES... [PUBLIC deps...] [PRIVATE deps...] [PRECOMPILED set] [OPTIMIZED])
# OPTIMIZED: it computes much, so it is optimised where sanitizers run, too.
function(elixir_library name)
  cmake_parse_arguments(arg "OPTIMIZED" "PRECOMPILED" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(ELIXIR_TORCH_FREE_FROM AND TARGET ${name})
    return()
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  set_property(GLOBAL APPEND PROPERTY ELIXIR_TARGETS ${name})
  if(arg_OPTIMIZED)
    elixir_optimize(${name})
  endif()
  target_link_libraries(${name} PUBLIC elixir_options ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  if(arg_PRECOMPILED)
    elixir_precompile(${name} ${arg_PRECOMPILED})
  endif()
endfunction()

# elixir_program(NAME SOURCES... LINK deps... [PRECOMPILED set]): lands in bin/ and is installed. A build for
# another torch has the first one's programs there.
function(elixir_program name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "SOURCES;LINK" ${ARGN})
  if(ELIXIR_TORCH_FREE_FROM)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_property(GLOBAL APPEND PROPERTY ELIXIR_TARGETS ${name})
  elixir_executable(${name})
  target_link_libraries(${name} PRIVATE elixir_options ${arg_LINK})
  if(arg_PRECOMPILED)
    elixir_precompile(${name} ${arg_PRECOMPILED})
  endif()
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(NOT TARGET elixir_programs)
    add_custom_target(elixir_programs)
  endif()
  add_dependencies(elixir_programs ${name})
endfunction()

# elixir_bench(NAME SOURCES... LINK deps... [PRECOMPILED set]): lands in bench/.
function(elixir_bench name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "SOURCES;LINK" ${ARGN})
  add_executable(bench_${name} ${arg_SOURCES})
  elixir_executable(bench_${name})
  target_link_libraries(bench_${name} PRIVATE elixir_options ${arg_LINK})
  if(arg_PRECOMPILED)
    elixir_precompile(bench_${name} ${arg_PRECOMPILED})
  endif()
  set_target_properties(bench_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()

# elixir_time_limit(SECONDS TESTS...): a test that takes longer is ended. The limit is there for tests that
# hang, not to judge how fast a machine is: SECONDS suffice on two quiet cores, and a busy or old processor
# may take several times as long.
set(ELIXIR_TIMEOUT_FACTOR 4 CACHE STRING "Tests may take so many times as long as their lists say")
function(elixir_time_limit seconds)
  math(EXPR seconds "${seconds} * ${ELIXIR_TIMEOUT_FACTOR}")
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${seconds})
endfunction()

# elixir_test(NAME SOURCES... LINK deps... [LABELS l...] [TIMEOUT s] [PRECOMPILED set] [OPTIMIZED]): one
# ctest entry for the whole program, so that a test run starts each binary once. The set is `tests` unless
# told. OPTIMIZED: it computes much itself, so it is compiled as libraries are, without a set.
function(elixir_test name)
  cmake_parse_arguments(arg "OPTIMIZED" "TIMEOUT;PRECOMPILED" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_PRECOMPILED)
    set(arg_PRECOMPILED tests)
  endif()
  add_executable(${name} ${arg_SOURCES})
  elixir_executable(${name})
  target_link_libraries(${name} PRIVATE elixir_options ${arg_LINK} elixir_test_support GTest::gtest GTest::gmock)
  if(arg_OPTIMIZED)
    elixir_optimize(${name})
  else()
    elixir_precompile(${name} ${arg_PRECOMPILED})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  # The default run of the tests leaves them out, so `all` does.
  if("timing" IN_LIST arg_LABELS OR "nightly" IN_LIST arg_LABELS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    set_property(GLOBAL APPEND PROPERTY ELIXIR_NIGHTLY_TESTS ${name})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77)
  elixir_time_limit(${arg_TIMEOUT} ${name})
  # LibTorch's OpenMP threads would wait for one another in loops, with the cores that other tests need.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:passive)
endfunction()
