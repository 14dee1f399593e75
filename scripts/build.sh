#!/usr/bin/env bash
# Sets up (scripts/setup.sh) and builds.
#
#   scripts/build.sh [PRESET] [--torch TORCH] [-- TARGET...]
#
# PRESET is release (the default), debug, asan or tsan; the result is in build/PRESET. Without a TARGET
# everything is built; the target `all` leaves out benchmarks, examples and nightly tests. ELIXIR_JOBS
# sets the number of compilers at a time; by default one per core, as far as memory allows.
#
# --torch builds for another torch than .venv's, release or debug: TORCH is a release such as 2.15.0 (which
# scripts/setup.sh installs into build/torch-2.15.0 for C++ on CPUs), `newest`, or the torch folder of an
# environment of yours (with GPUs: .../site-packages/torch). Only what links LibTorch is built, into
# build/PRESET-torch215; the rest comes from build/PRESET.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "build: $*" >&2; exit 2; }

preset=release
torch=''
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --) shift; targets=("$@"); break ;;
    --torch) torch=${2:-}; [[ -n $torch ]] || fail "--torch takes a release, newest, or a torch folder"; shift ;;
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
export NINJA_STATUS="[%f/%t, %e s] "

# configure FOLDER ARGUMENT...: of cmake. ninja configures again by itself when a CMakeLists.txt changes;
# the presets it does not know.
configure() {
  local folder=$1
  shift
  [[ ! -f $folder/build.ninja || CMakePresets.json -nt $folder/build.ninja ]] || return 0
  mkdir -p "$folder"
  if ! cmake --preset "$preset" -B "$folder" "$@" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    fail "cmake --preset $preset failed (above; also in $folder/configure.log)"
  fi
  touch "$folder/build.ninja"
}

compile() {  # FOLDER TARGET...
  local folder=$1
  shift
  if [[ ! -f $folder/.ninja_log ]]; then
    echo "build: $folder, $jobs compilers at a time: the first build takes 5 to 30 minutes on two cores" >&2
  fi
  if [[ -t 2 ]]; then  # ninja draws over its last line
    ninja -C "$folder" -j "$jobs" "$@" >&2
  else
    ninja -C "$folder" -j "$jobs" "$@" 2>&1 | show_progress
  fi
}

folder=build/$preset
if [[ -z $torch ]]; then
  scripts/setup.sh
  [[ ${#targets[@]} -gt 0 ]] || targets=(all everything)
  configure "$folder"
  compile "$folder" "${targets[@]}"
  echo "built: $folder/bin"
  exit
fi

[[ $preset == release || $preset == debug ]] || fail "--torch goes with release or debug: $preset links no LibTorch"
[[ ${#targets[@]} -gt 0 ]] || targets=(all)
if [[ -d $torch ]]; then
  scripts/setup.sh
  root=$(realpath "$torch")
  # Not a release of setup.sh's, so a folder: that of the wheel, or of what it lies in.
  [[ -f $root/version.py ]] || root=$(compgen -G "$root/lib/python3*/site-packages/torch" | head -1) ||
    fail "$torch is neither the torch folder of a wheel (.../site-packages/torch) nor a virtual environment with one"
else
  scripts/setup.sh --torch "$torch"
  [[ $torch != newest ]] || torch=$(sed -n 's/^NEWEST_TORCH=\([0-9.]*\).*/\1/p' scripts/setup.sh)
  root=$(compgen -G "$PWD/build/torch-$torch/lib/python3*/site-packages/torch" | head -1) ||
    fail "torch $torch is .venv's: scripts/build.sh $preset builds for it"
fi
minor=$(sed -n "s/^__version__ = '2\.\([0-9]*\)\..*/\1/p" "$root/version.py")
[[ -n $minor ]] || fail "have a torch in $root whose version.py names no release 2.x; need 2.11 to 2.15"
own=$(compgen -G "$PWD/.venv/lib/python3*/site-packages/torch" | head -1 || true)
[[ $root != "$own" ]] || fail "$root is .venv's torch: scripts/build.sh $preset builds for it"

configure "$folder"
compile "$folder" torch_free elixir_programs
configure "$folder-torch2$minor" "-DLIBTORCH_ROOT=$root" "-DELIXIR_TORCH_FREE_FROM=$PWD/$folder" -DELIXIR_BUILD_BENCH=OFF
compile "$folder-torch2$minor" "${targets[@]}"
echo "built: $folder-torch2$minor/lib/torch2$minor"
