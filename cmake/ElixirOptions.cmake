# elixir_options: how every source of Elixir is compiled.
add_library(elixir_options INTERFACE)
target_include_directories(elixir_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
target_compile_options(elixir_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>" $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
# GCC collects no garbage before a source has taken as much as it is likely to: a tenth less time.
target_compile_options(elixir_options INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=10000;--param=ggc-min-heapsize=4000000>")
# Adam's bits are a promise: no contraction of a*b+c that the source does not spell as an fma.
target_compile_options(elixir_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-ffp-contract=off>")
target_compile_options(elixir_options INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-missing-field-initializers;-Wno-parentheses-equality>")
# Sources compiled together look to GCC like headers, which may not hold anonymous namespaces.
if(CMAKE_UNITY_BUILD)
  target_compile_options(elixir_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
if(ELIXIR_SANITIZE)
  target_compile_options(elixir_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ELIXIR_SANITIZE};-fno-omit-frame-pointer>")
  # The check of virtual tables opens a pipe, so it reports faults where a test leaves no descriptor.
  if(ELIXIR_SANITIZE MATCHES "undefined")
    target_compile_options(elixir_options INTERFACE -fno-sanitize=vptr)
  endif()
  target_link_options(elixir_options INTERFACE -fsanitize=${ELIXIR_SANITIZE})
endif()
