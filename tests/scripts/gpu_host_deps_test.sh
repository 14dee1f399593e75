#!/usr/bin/env bash
# scripts/gpu_host_deps.sh: what it collects is enough to build with where none of those packages is
# installed. As root they are hidden from the build (in a mount namespace of its own); otherwise it is
# only checked that all of them are found in the prefix.
set -uo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PACKAGES='libzmq3-dev libzmq5 cppzmq-dev libnuma-dev libnuma1 libfmt-dev libfmt9 libspdlog-dev
  libspdlog1.10 libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libtomlplusplus3 libxxhash-dev
  libxxhash0 libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian libgloo-dev libgloo0
  pkgconf pkgconf-bin libpkgconf3 libsodium23 libpgm-5.3-0 libnorm1'

fail() { echo "FAILED: $*"; exit 1; }

# Hides the packages' files from this process and its children.
if [[ ${1:-} == --hidden ]]; then
  folder=$2
  # Never in the namespace that the rest of the machine lives in, whose name the caller gives.
  [[ -n ${3:-} && "$(readlink /proc/self/ns/mnt)" != "$3" ]] || exit 77
  over=$folder/over
  mkdir "$over" && mount -t tmpfs none "$over" && mkdir "$over/upper" "$over/work" &&
    mount -t overlay overlay -o "lowerdir=/usr,upperdir=$over/upper,workdir=$over/work" /usr || exit 77
  rm -rf /usr/include/boost
  # shellcheck disable=SC2086 # rm leaves the folders alone
  dpkg -L $PACKAGES 2>/dev/null | sed 's,^/lib/,/usr/lib/,' | xargs -d '\n' rm -f 2>/dev/null
  [[ ! -e /usr/include/fmt/core.h && ! -e /usr/bin/pkgconf && ! -e /usr/include/boost ]] ||
    fail "the packages are not hidden"
  shift 3
  "$@"
  exit
fi

command -v dpkg >/dev/null || { echo "skipped: this is not Debian"; exit 77; }
folder=$(mktemp -d /tmp/elixir-gpu-deps-XXXXXX)
trap 'rm -rf "$folder"' EXIT
export ELIXIR_GPU_HOST_DEPS=$folder/deps

"$repository/scripts/gpu_host_deps.sh" || fail "it does not collect"
kb=$(du -sk --apparent-size "$folder/deps" | cut -f1)
((kb > 1000 && kb < 40000)) || fail "$kb kB are not between 1 and 40 MB"
prefix=$folder/prefix
"$repository/scripts/gpu_host_deps.sh" unpack "$prefix" || fail "it does not unpack"
echo "ok: $kb kB, unpacked"

# A program with every library that Elixir links and every header that it includes of them.
mkdir "$folder/probe"
cat >"$folder/probe/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
add_subdirectory($repository elixir)
add_executable(probe probe.cpp)
target_link_libraries(probe PRIVATE PkgConfig::zmq PkgConfig::xxhash PkgConfig::numa fmt::fmt spdlog::spdlog
    CLI11::CLI11 nlohmann_json::nlohmann_json GTest::gmock benchmark::benchmark tomlplusplus)
END
cat >"$folder/probe/probe.cpp" <<'END'
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <gloo/context.h>
#include <gmock/gmock.h>
#include <numa.h>
#include <spdlog/spdlog.h>
#include <toml++/toml.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <nlohmann/json.hpp>
#include <zmq.hpp>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  benchmark::Initialize(&argc, argv);
  zmq::context_t context;
  CLI::App app;
  spdlog::info("{} {} {}", numa_available(), XXH3_64bits("a", 1),
               boost::interprocess::mapped_region::get_page_size());
  const toml::table table = toml::parse("zmq = 4");
  fmt::print("probe {} {}\n", nlohmann::json{{"zmq", ZMQ_VERSION_MAJOR}}.dump(),
             table["zmq"].value_or(0));
}
END
configure_and_build() {
  cmake -C "$prefix/initial_cache.cmake" -S "$folder/probe" -B "$folder/build" -G Ninja \
    -DELIXIR_WITH_TORCH=OFF >"$folder/log" 2>&1 &&
    nice ninja -C "$folder/build" probe >>"$folder/log" 2>&1 &&
    "$folder/build/probe" >>"$folder/log" 2>&1 &&
    ldd "$folder/build/probe" >"$folder/loaded"
}
export -f configure_and_build
export folder prefix repository
namespace=$(readlink /proc/self/ns/mnt)
hidden=no
if unshare -m "$0" --hidden "$folder" "$namespace" true 2>/dev/null; then hidden=yes; fi
rmdir "$folder/over" 2>/dev/null
if [[ $hidden == yes ]]; then
  unshare -m "$0" --hidden "$folder" "$namespace" bash -c configure_and_build
else
  configure_and_build
fi || { tail -n 40 "$folder/log"; fail "the prefix is not enough (hidden: $hidden)"; }
echo "ok: built and run, the packages hidden: $hidden"
for library in zmq xxhash numa fmt spdlog sodium krb5; do
  grep -qE "lib${library}[-.0-9]*\.so.* => $prefix/" "$folder/loaded" ||
    fail "$library is not loaded from the prefix: $(grep "lib$library" "$folder/loaded")"
done

found=$(grep -E -e '^(fmt|spdlog|CLI11|nlohmann_json|GTest|benchmark)_DIR:|^Boost_INCLUDE_DIR:' \
  -e '^pkgcfg_lib_(zmq_zmq|numa_numa|xxhash_xxhash):' "$folder/build/CMakeCache.txt")
elsewhere=$(grep -vF "=$prefix/" <<<"$found")
[[ -z $elsewhere ]] || fail "found outside the prefix: $elsewhere"
[[ $(wc -l <<<"$found") -eq 10 ]] || fail "not ten packages, but: $found"
echo "ok: every package is found in the prefix"

# Without the folder the remedy is said.
output=$(ELIXIR_GPU_HOST_DEPS=$folder/nothing "$repository/scripts/gpu_host_deps.sh" unpack \
  "$folder/p" 2>&1)
[[ $? -eq 1 && $output == *"run scripts/gpu_host_deps.sh on the machine you build on"* ]] ||
  fail "a missing folder is not told: $output"
echo "ok: a missing folder is told"
