#!/usr/bin/env bash
# Runs tests again and again beside two busy loops, and reports which of them failed how often: a test
# that fails by chance, or only on a busy machine, is a defect.
#
#   scripts/repeat.sh N [OPTIONS] [NAME...]    N times each test of ctest, or each NAME (a regular expression)
#
#   --long M         tests that took 10 s or more run M times (default: a sixth of N, at least once)
#   --preset PRESET  release (default), asan or tsan; it must be built
#   --loops K        busy loops (default: 2)
#   --at-a-time K    tests that run at once (default: 2)
#
# The labels timing and nightly are left out. The output of a failed test is kept in
# build/repeat/PRESET/NAME.ROUND.log. Exit code 1: a test failed at least once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LONG_S=10

fail() { echo "repeat: $*" >&2; exit 2; }
number() { [[ ${2:-} =~ ^[0-9]+$ ]] || fail "$1 needs a whole number, not '${2:-}'"; }

times='' long='' preset=release loops=2 at_a_time=2 names=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --long) number "$@"; long=$2; shift ;;
    --preset) preset=${2:-}; shift ;;
    --loops) number "$@"; loops=$2; shift ;;
    --at-a-time) number "$@"; at_a_time=$2; shift ;;
    -*) fail "unknown option '$1'; see scripts/repeat.sh --help" ;;
    *) if [[ -z $times ]]; then number N "$1"; times=$1; else names+=("$1"); fi ;;
  esac
  shift
done
[[ -n $times && $times -gt 0 ]] || fail "how many times? scripts/repeat.sh N [NAME...]"
[[ -n $long ]] || long=$((times / 6 > 0 ? times / 6 : 1))
[[ $at_a_time -gt 0 ]] || fail "--at-a-time needs at least 1"
build=build/$preset
[[ -f $build/CTestTestfile.cmake ]] || fail "$build is not built; run scripts/build.sh $preset"

export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1 ${UBSAN_OPTIONS:-}"
# A shell that starts this in its background has it ignore both, and the tests would, too.
runner=(env --default-signal=INT,QUIT)
if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then runner+=(setarch -R); fi

busy=()
end_loops() { [[ ${#busy[@]} -eq 0 ]] || kill "${busy[@]}" 2>/dev/null || true; }
trap end_loops EXIT
trap 'exit 130' INT TERM
for ((i = 0; i < loops; ++i)); do
  (while :; do :; done) &
  busy+=($!)
done

pattern=$(IFS='|'; echo "${names[*]:-.}")
mapfile -t tests < <(ctest --test-dir "$build" -N -R "$pattern" -LE '^(timing|nightly)$' |
  sed -nE 's/^ *Test +#[0-9]+: //p')
[[ ${#tests[@]} -gt 0 ]] || fail "no test of $build has a name like '$pattern'"

logs=build/repeat/$preset
rm -rf "$logs" && mkdir -p "$logs"
declare -A ran failures seconds
for name in "${tests[@]}"; do ran[$name]=0 failures[$name]=0 seconds[$name]=0; done

# One run of each test that has rounds left. ctest's own lines say how it went.
run_round() {
  local round=$1 name wanted=() line
  for name in "${tests[@]}"; do
    if ((round <= long || (round <= times && seconds[$name] < LONG_S))); then wanted+=("$name"); fi
  done
  [[ ${#wanted[@]} -gt 0 ]] || return 1
  # Only the output of failed tests is kept.
  "${runner[@]}" ctest --test-dir "$build" -j "$at_a_time" --output-on-failure \
    -R "^($(IFS='|'; echo "${wanted[*]}"))\$" >"$logs/round.log" 2>&1 || true
  while read -r name state took; do
    [[ -n ${ran[$name]:-} ]] || continue
    ran[$name]=$((ran[$name] + 1))
    ((took <= seconds[$name])) || seconds[$name]=$took
    case $state in
      Passed | Skipped) ;;
      *) failures[$name]=$((failures[$name] + 1))
         scripts/failed_tests.py "$preset" >"$logs/$name.$round.log" 2>&1 || true
         echo "repeat: round $round: $name $state after $took s ($logs/$name.$round.log)" ;;
    esac
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+ *(\*\*\*)?([A-Za-z]+).* ([0-9]+)\.[0-9]+ sec.*/\1 \3 \4/p' \
    "$logs/round.log")
  echo "repeat: round $round of $times: ${#wanted[@]} tests"
}

for ((round = 1; round <= times; ++round)); do run_round "$round" || break; done
rm -f "$logs/round.log"

total=0 flaky=0
for name in "${tests[@]}"; do
  total=$((total + ran[$name]))
  ((failures[$name] == 0)) && continue
  flaky=$((flaky + 1))
  echo "$name: failed ${failures[$name]} of ${ran[$name]} times"
done
echo "repeat: ${#tests[@]} tests, $total runs, $flaky tests failed at least once"
((total > 0 && flaky == 0))
