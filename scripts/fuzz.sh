#!/usr/bin/env bash
# Sets up, builds libFuzzer's targets (tests/fuzz/fuzz_NAME.cpp: what decodes foreign bytes) with the address
# and undefined-behaviour sanitizers, and runs them from the inputs in tests/fuzz/corpus/NAME.
#
#   scripts/fuzz.sh [OPTIONS] [NAME...]     all targets where none is named
#
#   --seconds N      so long each (default: 60)
#   --executions N   so many inputs each, however long they take
#   --jobs N         targets at a time (default: one a core)
#   --merge          then makes the corpus anew: the fewest inputs with all coverage reached so far
#   --no-build       runs what is built
#   --list           the names
#
# An input that a target fails on is kept in build/fuzz/findings/NAME, and the command that repeats it is
# shown. Exit code 1: there is a finding, or the control, a planted fault, was not found. What a run found
# on its way stays in build/fuzz/found/NAME; the next one begins with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PROGRAMS=build/asan/fuzz
SEEDS=build/fuzz/seeds  # valid inputs, made by today's code
FOUND=build/fuzz/found
FINDINGS=build/fuzz/findings
LOGS=build/fuzz/logs
CORPUS=tests/fuzz/corpus

INPUT_BYTES_MAX=4096
MEMORY_MIB_MAX=2048  # of a target; more is a finding
INPUT_S_MAX=10       # for one input; more is a finding
TIMEOUT_EXIT_CODE=70  # libFuzzer's
CORPUS_FILES_MAX=200
CONTROL_EXECUTIONS_MAX=2000000
PROGRESS_EVERY_S=15

say() { echo "fuzz: $*" >&2; }
fail() { say "$*"; exit 2; }

target_names() {
  local file name
  for file in tests/fuzz/fuzz_*.cpp; do
    name=${file#tests/fuzz/fuzz_}
    [[ $name == planted.cpp ]] || echo "${name%.cpp}"
  done
}

number_of() { [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "$1 needs a whole number of 1 or more, not '${2:-}'"; }

mapfile -t known < <(target_names)
seconds=60 executions="" jobs=$(nproc) merge="" build=1
names=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --list) printf '%s\n' "${known[@]}"; exit 0 ;;
    --seconds) number_of "$@"; seconds=$2; shift ;;
    --executions) number_of "$@"; executions=$2; shift ;;
    --jobs) number_of "$@"; jobs=$2; shift ;;
    --merge) merge=1 ;;
    --no-build) build="" ;;
    *)
      [[ " ${known[*]} " == *" $1 "* ]] ||
        fail "there is no target or option '$1'; targets are: ${known[*]}"
      names+=("$1") ;;
  esac
  shift
done
[[ ${#names[@]} -gt 0 ]] || names=("${known[@]}")

[[ -z $build ]] || scripts/build.sh asan -- fuzzers
for name in planted seeds "${names[@]}"; do
  [[ -x $PROGRAMS/fuzz_$name ]] || fail "$PROGRAMS/fuzz_$name is not built; run without --no-build"
done

# Allocations remember no callers (3 to 7 % of the time); the command that repeats a finding shows them.
export ASAN_OPTIONS="quarantine_size_mb=16:malloc_context_size=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
# Of inputs that reach as much, the quicker one is mutated more often: make_plan makes three times as many.
limits=(-max_len=$INPUT_BYTES_MAX -rss_limit_mb=$MEMORY_MIB_MAX -timeout=$INPUT_S_MAX -entropic_scale_per_exec_time=1)

running=()  # process ids
end_running() { [[ ${#running[@]} -eq 0 ]] || kill "${running[@]}" 2>/dev/null || true; }
trap end_running EXIT
trap 'exit 130' INT TERM

# The folders with inputs of a target; new ones go into the first. What it failed on before it fails on again.
inputs_of() {
  local folder
  mkdir -p "$FOUND/$1"
  for folder in "$FOUND/$1" "$CORPUS/$1" "$SEEDS/$1" "$FINDINGS/$1"; do
    [[ ! -d $folder ]] || echo "$folder"
  done
}

# A fuzzer that does not find the planted fault finds nothing.
check_control() {
  mkdir -p "$FINDINGS/planted"
  local log=$LOGS/planted.log
  if "$PROGRAMS/fuzz_planted" -runs=$CONTROL_EXECUTIONS_MAX -max_len=16 \
      -artifact_prefix="$FINDINGS/planted/" >"$log" 2>&1 ||
    ! grep -q 'AddressSanitizer: heap-buffer-overflow' "$log"; then
    say "the control, a planted read behind the input, was not found: see $log"
    return 1
  fi
  rm -r "$FINDINGS/planted"
  echo "control: the planted fault was found"
}

start() {
  mkdir -p "$FINDINGS/$1"
  local name=$1 options=("${limits[@]}" -print_final_stats=1 -artifact_prefix="$FINDINGS/$1/") inputs
  [[ ! -f tests/fuzz/dictionaries/$name.dict ]] || options+=(-dict="tests/fuzz/dictionaries/$name.dict")
  if [[ -n $executions ]]; then options+=(-runs="$executions"); else options+=(-max_total_time="$seconds"); fi
  mapfile -t inputs < <(inputs_of "$name")
  "$PROGRAMS/fuzz_$name" "${options[@]}" "${inputs[@]}" >"$LOGS/$name.log" 2>&1 &
  running+=($!)
}

# "EXECUTIONS COVERAGE" as the log last said them: edges of the instrumented code.
reached() {
  awk '/^#[0-9]+/ {executions = substr($1, 2)}
       match($0, /cov: [0-9]+/) {coverage = substr($0, RSTART + 5, RLENGTH - 5)}
       /^stat::number_of_executed_units:/ {executions = $2}
       END {print executions + 0, coverage + 0}' "$LOGS/$1.log" 2>/dev/null || echo "0 0"
}

tell_progress() {
  local name line=""
  for name in "${under_way[@]}"; do
    local count coverage
    read -r count coverage < <(reached "$name")
    line+="; $name $count inputs, coverage $coverage"
  done
  say "$done_count of ${#names[@]} done${line}"
}

# Waits until fewer than $1 targets run.
under_way=() done_count=0 shown_s=$SECONDS
wait_below() {
  local i
  while ((${#running[@]} >= $1)); do
    sleep 0.2
    for i in "${!running[@]}"; do
      kill -0 "${running[i]}" 2>/dev/null && continue
      finish "${under_way[i]}" "${running[i]}"
      unset "running[i]" "under_way[i]"
    done
    running=("${running[@]}") under_way=("${under_way[@]}")
    if ((SECONDS - shown_s >= PROGRESS_EVERY_S)); then tell_progress; shown_s=$SECONDS; fi
  done
}

# Seconds of the clock are not the target's alone: an input that took too long gets a second chance.
slow_once() {
  local input
  for input in "$FINDINGS/$1"/timeout-*; do
    [[ -f $input ]] || return 1
    "$PROGRAMS/fuzz_$1" "${limits[@]}" -artifact_prefix="$FINDINGS/$1/" "$input" >>"$LOGS/$1.log" 2>&1 || return 1
    rm "$input"
  done
}

failed=()
declare -A outcome
finish() {
  local name=$1 code=0
  wait "$2" || code=$?
  done_count=$((done_count + 1))
  outcome[$name]=clean
  if ((code == TIMEOUT_EXIT_CODE)) && slow_once "$name"; then
    outcome[$name]="cut short: an input took over $INPUT_S_MAX s, but not again"
    return
  fi
  ((code != 0)) || { rmdir "$FINDINGS/$name" 2>/dev/null || true; return 0; }
  outcome[$name]=FINDING
  failed+=("$name")
  say "$name: a finding"
  sed -n '/ERROR: \|runtime error\|bug in Elixir\|what(): /p' "$LOGS/$name.log" | head -n 5 >&2
}

merge_corpus() {
  local name=$1 inputs fresh=build/fuzz/merged/$1 log=$LOGS/$1.merge.log
  rm -rf "$fresh" && mkdir -p "$fresh"
  mapfile -t inputs < <(inputs_of "$name")
  # By edges alone: inputs that differ in how often something is done would be several times as many.
  "$PROGRAMS/fuzz_$name" -set_cover_merge=1 -use_counters=0 "${limits[@]}" "$fresh" "${inputs[@]}" \
    >"$log" 2>&1 || { say "$name: merging failed: see $log"; return 1; }
  local count
  count=$(find "$fresh" -type f | wc -l)
  ((count <= CORPUS_FILES_MAX)) ||
    # The smallest inputs have most of the coverage.
    find "$fresh" -type f -printf '%s %p\n' | sort -n | tail -n +$((CORPUS_FILES_MAX + 1)) |
      cut -d' ' -f2 | xargs rm
  rm -rf "${CORPUS:?}/$name" && mkdir -p "$CORPUS" && mv "$fresh" "$CORPUS/$name"
  echo "$CORPUS/$name: $(find "$CORPUS/$name" -type f | wc -l) inputs, $(du -bs "$CORPUS/$name" | cut -f1) bytes"
}

rm -rf "$SEEDS" && mkdir -p "$SEEDS" "$LOGS" "$FINDINGS"
"$PROGRAMS/fuzz_seeds" . "$SEEDS"
control_found=1
check_control || control_found=""
for name in "${names[@]}"; do
  wait_below "$jobs"
  under_way+=("$name")
  start "$name"
done
wait_below 1

printf '\n%-16s %12s %10s %10s  %s\n' target executions seconds coverage outcome
for name in "${names[@]}"; do
  read -r count coverage < <(reached "$name")
  took=$(sed -nE 's/^Done [0-9]+ runs in ([0-9]+) second.*/\1/p' "$LOGS/$name.log")
  printf '%-16s %12s %10s %10s  %s\n' "$name" "$count" "${took:--}" "$coverage" "${outcome[$name]}"
done
if [[ -n $merge && ${#failed[@]} -eq 0 ]]; then
  for name in "${names[@]}"; do merge_corpus "$name" || failed+=("$name"); done
fi

for name in "${failed[@]}"; do
  echo
  echo "$name: see $LOGS/$name.log; to repeat:"
  find "$FINDINGS/$name" -type f -printf "  $PROGRAMS/fuzz_$name %p\n" 2>/dev/null
done
[[ ${#failed[@]} -eq 0 && -n $control_found ]]
