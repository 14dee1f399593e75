#!/usr/bin/env bash
# Sets up (scripts/setup.sh) and builds.
#
#   scripts/build.sh [PRESET] [-- TARGET...]
#
# PRESET is release (the default), debug, asan or tsan; the result is in build/PRESET. Without a TARGET
# everything is built; the target `all` leaves out benchmarks, examples and nightly tests. ELIXIR_JOBS
# sets the number of compilers at a time; by default one per core, as far as memory allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "build: $*" >&2; exit 2; }

preset=release
targets=(all everything)
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; targets=("$@"); break ;;
    release | debug | asan | tsan) preset=$1 ;;
    *) fail "unknown preset '$1'; known are release, debug, asan, tsan (targets go after --)" ;;
  esac
  shift
done

# A file that includes LibTorch takes about 2 GiB to compile.
jobs_that_fit() {
  local cores gib
  cores=$(nproc)
  gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  local fit=$((gib / 2 > 0 ? gib / 2 : 1))
  echo $((cores < fit ? cores : fit))
}

scripts/setup.sh
folder=build/$preset
# ninja configures again by itself when a CMakeLists.txt changes; the presets it does not know.
if [[ ! -f $folder/build.ninja || CMakePresets.json -nt $folder/build.ninja ]]; then
  mkdir -p "$folder"
  if ! cmake --preset "$preset" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    fail "cmake --preset $preset failed (above; also in $folder/configure.log)"
  fi
  touch "$folder/build.ninja"
fi

PROGRESS_EVERY_S=15

# Of ninja's output a line now and then, and all that is not progress.
show_progress() {
  local line shown_s=$SECONDS
  while IFS= read -r line; do
    if [[ $line != "["*/*"] "* ]]; then
      [[ $line == "ninja: "@(Entering|no\ work)* ]] || echo "$line"
    elif ((SECONDS - shown_s >= PROGRESS_EVERY_S)); then
      echo "build: $line"
      shown_s=$SECONDS
    fi
  done >&2
}

jobs=${ELIXIR_JOBS:-$(jobs_that_fit)}
if [[ ! -f $folder/.ninja_log ]]; then
  echo "build: $preset, $jobs compilers at a time: the first build takes 5 to 15 minutes on two cores" >&2
fi
export NINJA_STATUS="[%f/%t, %e s] "
if [[ -t 2 ]]; then  # ninja draws over its last line
  ninja -C "$folder" -j "$jobs" "${targets[@]}" >&2
else
  ninja -C "$folder" -j "$jobs" "${targets[@]}" 2>&1 | show_progress
fi
echo "built: $folder/bin"
