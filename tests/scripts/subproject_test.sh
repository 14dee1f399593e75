#!/usr/bin/env bash
# A project of somebody else adds this repository with add_subdirectory and links elixir::elixir, as
# docs/training.md says: it configures, and its program would be compiled and linked with the library.
#   subproject_test.sh REPOSITORY
set -euo pipefail
repository=$1
folder=$(mktemp -d /tmp/elixir-subproject-XXXXXX)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(mine LANGUAGES CXX)
add_subdirectory($repository elixir)
add_executable(mine $repository/examples/your_model.cpp)
target_link_libraries(mine PRIVATE elixir::elixir)
END
cmake -S "$folder" -B "$folder/build" -G Ninja -DELIXIR_BUILD_TESTS=OFF -DELIXIR_BUILD_BENCH=OFF \
  >"$folder/log" 2>&1 || { cat "$folder/log"; echo "FAILED: it does not configure"; exit 1; }
plan=$(ninja -C "$folder/build" -n -v mine)
check() {  # check WHAT TEXT
  if grep -qF -- "$2" <<<"$plan"; then echo "ok: $1"; else echo "FAILED: $1 ($2)"; exit 1; fi
}
check "includes are rooted at the repository" "-I$repository "
check "the library is built" "libelixir.so"
check "its headers are written" "write_headers.cmake"
check "the program finds them" "-I$folder/build/elixir/include "
check "LibTorch is linked" "libtorch_cpu.so"
mine=$(grep -F -- "-c $repository/examples/your_model.cpp" <<<"$plan")
[[ -n $mine && $mine != *"-I$repository "* ]] || { echo "FAILED: the program sees the repository"; exit 1; }
echo "ok: and nothing of the repository"
[[ $plan != *"-I$folder "* ]] || { echo "FAILED: includes rooted at the other project"; exit 1; }
echo "ok: nothing is rooted at the other project"
