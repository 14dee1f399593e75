#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the sources that do not include LibTorch's headers, which take
# minutes a file. Uses the compile commands of the debug preset, in which each source is compiled by
# itself: scripts/tidy.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! -f build/debug/compile_commands.json ]]; then
  echo "tidy.sh: build/debug is not configured; run scripts/build.sh debug first" >&2
  exit 2
fi
mapfile -t files < <(git ls-files 'base/*.cpp' 'shm/*.cpp' 'optim_cpu/*.cpp' 'daemon/*.cpp' \
  'client/session/*.cpp' 'client/rcache/*.cpp' 'client/plan/*.cpp' 'client/ranks/*.cpp' \
  'planner/*.cpp' 'launcher/*.cpp' 'ctl/*.cpp')
echo "clang-tidy: ${#files[@]} files"
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 4 clang-tidy -p "build/debug" --quiet 2> >(grep -vE 'warnings? (generated|treated)|^$' >&2)
echo "clang-tidy: clean"
