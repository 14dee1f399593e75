#!/usr/bin/env bash
# Sets up, builds and runs the tests. The release build comes first, then clang-tidy looks at what the
# last 20 commits changed. The tests of these rooms without LibTorch run once more: clang builds them with
# the address and undefined-behaviour sanitizers, and looks at the locks; decoders of foreign bytes are
# fuzzed for 8 s each; what has threads runs under the thread sanitizer. Nightly parts do so for all rooms.
# What links LibTorch is built once more, for the newest torch (setup.sh pins it), and a part of its tests run.
# scripts/ci_minutes.sh shows afterwards where the time went. docs/design/tests.md says where a test belongs.
#
# On a slow machine a step after the release tests is left out, and named at the end, if it would end
# more than ELIXIR_TEST_MINUTES (80) after the start. scripts/tidy.py and nightly parts run it.
#
#   scripts/test.sh                   all but the labels timing (rates of this machine) and nightly (long)
#   scripts/test.sh --quick           what the changes of the work tree can break, in about five minutes
#   scripts/test.sh --nightly PART    a part of the long tests; `list` names the parts
#   scripts/test.sh CTEST_ARGS...     the release build alone, with these arguments for ctest (-R name)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 0
fi
if [[ ${1:-} == --nightly ]]; then
  shift
  exec scripts/nightly.py "${@:-list}"
fi

JOBS=2  # fuzz targets
TESTS=3  # on two cores: tests that start processes wait for one another much of the time
SINCE=HEAD~20  # what has changed since is looked at by clang-tidy and run under sanitizers
# The newest torch's build, and what it builds and runs: what differs between releases of torch. A nightly part
# runs all of its tests.
NEWEST=$(sed -n 's/^NEWEST_TORCH=2\.\([0-9]*\)\..*/release-torch2\1/p' scripts/setup.sh)
NEWEST_TESTS=(client_interception_test client_torch_version_test client_future_torch_test client_torch_ways_test
              client_torch_fork_test)
FUZZ_SECONDS=8  # a target; nightly parts fuzz for longer

# Address-space randomisation with many bits and the thread sanitizer do not get along.
without_randomisation=()
if setarch -R true 2>/dev/null; then without_randomisation=(setarch -R); fi

LIMIT_MINUTES=${ELIXIR_TEST_MINUTES:-80}

failed=()
left_out=()

# run_step NAME COMMAND...: how many seconds it took stands in build/NAME.seconds.
run_step() {
  local name=$1 began=$SECONDS code=0
  shift
  echo "=== $name"
  "$@" || code=$?
  mkdir -p build
  echo "$((SECONDS - began))" >"build/$name.seconds"
  ((code == 0)) || failed+=("$name")
  return "$code"
}

# there_is_time STEP PERCENT: whether a step can end within the limit that takes so many percent of the time
# that the release build and its tests took, on this machine. bench/RESULTS.md has the percentages.
there_is_time() {
  local release
  release=$(cat build/release.{build,tests}.seconds 2>/dev/null | awk '{s += $1} END {print s + 0}')
  ((SECONDS + release * $2 / 100 > LIMIT_MINUTES * 60)) || return 0
  echo "=== $1: left out, there is no time"
  left_out+=("$1")
  return 1
}

# run_ctest PRESET [CTEST_ARGS...]; its output is kept for the summary.
run_ctest() {
  local preset=$1 runner=() code=0
  shift
  [[ $preset == tsan ]] && runner=("${without_randomisation[@]}")
  "${runner[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$TESTS" "$@" \
    2>&1 | tee "build/$preset/ctest.log" || code=$?
  return "$code"
}

# fuzz_decoders NAME...; its summary is kept, too.
fuzz_decoders() {
  mkdir -p build/fuzz
  scripts/fuzz.sh --no-build --jobs "$JOBS" --seconds "$FUZZ_SECONDS" "$@" | tee build/fuzz/summary.txt
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

export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1 ${UBSAN_OPTIONS:-}"

if [[ ${1:-} == --quick ]]; then
  shift
  [[ -f build/release/build.ninja ]] || scripts/build.sh release -- all
  mapfile -t names < <(scripts/quick_tests.py "$@")
  [[ ${#names[@]} -gt 0 ]] || exit 2
  set -- -R "^($(IFS='|'; echo "${names[*]}"))\$"
  run_step release.build scripts/build.sh release -- all || exit 1
elif [[ $# -gt 0 ]]; then
  run_step release.build scripts/build.sh release || exit 1
fi
if [[ $# -gt 0 ]]; then
  code=0
  run_ctest release "$@" || code=$?
  tell_skipped release
  tell_failed release
  exit "$code"
fi

rm -f build/*.seconds build/*/ctest.log build/fuzz/summary.txt
run_step setup scripts/setup.sh || exit 1
run_step foreign_setup scripts/foreign_setup.sh || true  # without it e2e_foreign is skipped

# run_chosen PRESET [TARGETS...]: builds these and the preset's tests of what has changed, and runs the tests.
run_chosen() {
  local preset=$1 names targets=("${@:2}")
  names=$(scripts/sanitizer_tests.py "$preset" "$SINCE") || { failed+=("$preset"); return; }
  mapfile -t -O "${#targets[@]}" targets < <(awk 'NF > 1 {print $2}' <<<"$names")
  names=$(awk 'NF {print $1}' <<<"$names" | paste -sd '|')
  [[ -n $names ]] || echo "=== $preset: no code that it has tests of has changed since $SINCE"
  [[ ${#targets[@]} -gt 0 ]] || return 0
  run_step "$preset.build" scripts/build.sh "$preset" -- "${targets[@]}" || return 0
  [[ -z $names ]] || run_step "$preset.tests" run_ctest "$preset" -R "^($names)\$" || true
}

if run_step release.build scripts/build.sh release -- all; then
  run_step release.tests run_ctest release -LE '^(timing|nightly)$' || true
fi
if there_is_time newest_torch 20; then
  if run_step newest_torch.build scripts/build.sh --torch newest -- elixir "${NEWEST_TESTS[@]}"; then
    run_step newest_torch.tests run_ctest "$NEWEST" -R "^($(IFS='|'; echo "${NEWEST_TESTS[*]}"))\$" || true
  fi
fi
! there_is_time tidy 10 || run_step tidy scripts/tidy.py --since "$SINCE" || true
if there_is_time asan 55; then
  listed=$(scripts/sanitizer_tests.py fuzz "$SINCE") || failed+=(fuzz)
  read -r -d '' -a decoders <<<"$listed" || true
  fuzzers=()
  [[ ${#decoders[@]} -eq 0 ]] || fuzzers=(fuzz_seeds fuzz_planted "${decoders[@]/#/fuzz_}")
  run_chosen asan "${fuzzers[@]}"
  [[ ${#decoders[@]} -eq 0 ]] || run_step fuzz fuzz_decoders "${decoders[@]}" || true
fi
! there_is_time tsan 30 || run_chosen tsan
echo
scripts/ci_minutes.sh || true  # when nothing could be built

# What each ctest closed with, the release build's last.
for preset in asan tsan "$NEWEST" release; do
  echo
  echo "=== $preset"
  if [[ -f build/$preset/ctest.log ]]; then
    sed -n '/tests passed/,$p' "build/$preset/ctest.log"
  elif [[ " ${left_out[*]} " == *" ${preset/#"$NEWEST"/newest_torch} "* ]]; then
    echo "left out: it would not have ended within $LIMIT_MINUTES minutes (ELIXIR_TEST_MINUTES)"
  else
    echo "not built"
  fi
  tell_skipped "$preset"
  tell_failed "$preset"
done
echo
echo "=== fuzz"
cat build/fuzz/summary.txt 2>/dev/null || echo "not built"
[[ ${#left_out[@]} -eq 0 ]] || echo "left out, for time: ${left_out[*]}" >&2
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}" >&2; exit 1; }
