#!/usr/bin/env bash
# Sets up, builds and runs the tests: the release build, then, for all that does not link LibTorch,
# once under the address and undefined-behaviour sanitizers and, where there are threads, once under the
# thread sanitizer; then the decoders of foreign bytes are fuzzed for 20 s each (scripts/fuzz.sh), clang
# looks at the locks and clang-tidy for bugs. scripts/ci_minutes.sh shows afterwards where the time went.
#
#   scripts/test.sh                  all but the labels timing (rates of this machine) and nightly (long)
#   scripts/test.sh --nightly        these, too
#   scripts/test.sh CTEST_ARGS...    the release build alone, with these arguments for ctest (-R name)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 0
fi

JOBS=2  # more would make tests that start several processes wait for one another
FUZZ_SECONDS=20  # a target: seven minutes with the build, two at a time

# Address-space randomisation with many bits and the thread sanitizer do not get along.
without_randomisation=()
if setarch -R true 2>/dev/null; then without_randomisation=(setarch -R); fi

failed=()

# test_preset PRESET [CTEST_ARGS...]; its output is kept for the summary.
test_preset() {
  local preset=$1 began=$SECONDS built
  shift
  echo "=== $preset: build"
  scripts/build.sh "$preset" || return 1
  # Without it e2e_foreign is skipped; then a whole run has failed.
  [[ $preset != release ]] || scripts/foreign_setup.sh || failed+=("foreign_setup")
  built=$SECONDS
  echo "=== $preset: test"
  local runner=() code=0
  [[ $preset == tsan ]] && runner=("${without_randomisation[@]}")
  "${runner[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$JOBS" "$@" \
    2>&1 | tee "build/$preset/ctest.log" || code=$?
  echo "$((built - began)) $((SECONDS - built))" >"build/$preset/seconds.txt"
  return "$code"
}

# Its summary is kept, too.
fuzz_decoders() {
  local began=$SECONDS built code=0
  echo "=== fuzz"
  mkdir -p build/fuzz
  scripts/build.sh fuzz -- fuzzers || return 1
  built=$SECONDS
  scripts/fuzz.sh --no-build --jobs "$JOBS" --seconds "$FUZZ_SECONDS" | tee build/fuzz/summary.txt || code=$?
  echo "$((built - began)) $((SECONDS - built))" >build/fuzz/seconds.txt
  return "$code"
}

# Where clang finds a lock missing (base/mutex.h), it does not compile.
check_locks() {
  echo "=== thread-safety"
  mkdir -p build && cmake --preset thread-safety >build/thread-safety.log 2>&1 || { cat build/thread-safety.log; return 1; }
  cmake --build --preset thread-safety
}

check_bugs() {
  echo "=== tidy"
  scripts/tidy.py
}

# What the last ctest of a preset did not run, and why: programs and single tests of programs that say
# "skipped: [NAME:] REASON". A run in which much is skipped is no pass.
tell_skipped() {
  local log=build/$1/Testing/Temporary/LastTest.log told
  [[ -f $log ]] || return 0
  told=$(awk '/^[0-9]+\/[0-9]+ Testing: / {name = $3}
              /^skipped: / {sub(/^skipped: /, ""); print "  " name ": " $0}' "$log")
  [[ -z $told ]] || printf '\nskipped in %s:\n%s\n' "$1" "$told"
}

# What they printed, again: the output of a whole run is long.
tell_failed() {
  local told
  told=$(scripts/failed_tests.py "$1")
  [[ -z $told ]] || printf '\nfailed in %s:\n%s\n' "$1" "$told"
}

usually_left_out=(-LE '^(timing|nightly)$')
if [[ ${1:-} == --nightly ]]; then
  usually_left_out=()
  export ELIXIR_NIGHTLY=1  # the tests that take a sample take all
elif [[ $# -gt 0 ]]; then
  code=0
  test_preset release "$@" || code=$?
  tell_skipped release
  tell_failed release
  exit "$code"
fi

export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1 ${UBSAN_OPTIONS:-}"
for preset in release asan tsan; do
  rm -f "build/$preset/ctest.log" "build/$preset/seconds.txt"
  test_preset "$preset" "${usually_left_out[@]}" || failed+=("$preset")
done
rm -f build/fuzz/summary.txt build/fuzz/seconds.txt
fuzz_decoders || failed+=("fuzz")
check_locks || failed+=("thread-safety")
check_bugs || failed+=("tidy")
echo
scripts/ci_minutes.sh || true  # when nothing could be built

# What each ctest closed with, the release build's last.
for preset in asan tsan release; do
  echo
  echo "=== $preset"
  if [[ -f build/$preset/ctest.log ]]; then
    sed -n '/tests passed/,$p' "build/$preset/ctest.log"
  else
    echo "not built"
  fi
  tell_skipped "$preset"
  tell_failed "$preset"
done
echo
echo "=== fuzz"
cat build/fuzz/summary.txt 2>/dev/null || echo "not built"
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}" >&2; exit 1; }
