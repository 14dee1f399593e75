#!/usr/bin/env bash
# scripts/gpu_check.sh without a GPU: what it would do, that it says so, and that no stage's end stops
# the next.
set -uo pipefail
check_gpu=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/gpu_check.sh
folder=$(mktemp -d /tmp/elixir-gpu-check-XXXXXX)
trap 'rm -rf "$folder"' EXIT
export CUDA_VISIBLE_DEVICES=""  # on a machine with GPUs, too
failures=0

check() {  # check WHAT CONDITION...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failures=$((failures + 1)); fi
}
contains() { [[ $1 == *"$2"* ]]; }
matches() { grep -qE -- "$2" <<<"$1"; }

# 1. The stages, and nothing done.
output=$("$check_gpu" --dry-run "$folder/dry")
check "--dry-run ends well" test $? -eq 0
check "and writes nothing" test ! -e "$folder/dry"
for stage in deps configure build_kernels kernels build gpu_tests memcheck racecheck bench_kernels; do
  check "--dry-run names $stage, with its limit" matches "$output" "^$stage +(host|gpu) +[0-9]+ s  [a-z]"
done
check "the tests come before the benchmarks" test \
  "$(grep -n '^gpu_tests' <<<"$output" | cut -d: -f1)" -lt "$(grep -n -m 1 '^bench' <<<"$output" | cut -d: -f1)"

# 2. No GPU.
output=$("$check_gpu" "$folder/none")
check "without a GPU it ends with 77" test $? -eq 77
check "says so" contains "$output" "no GPU here"
check "and has skipped every stage" test \
  "$(grep -c '^skipped .*: no GPU$' "$folder/none/summary.txt")" -eq "$("$check_gpu" --dry-run | wc -l)"

# 3. Every way for a stage to end.
cat >"$folder/stages" <<'END'
good    | host | 5 | echo all is well | cat
bad     | host | 5 | echo the reason; exit 3
slow    | host | 1 | sleep 30
absent  | host | 5 | echo nothing here to do it with; exit 77
device  | gpu  | 5 | true
results | host | 5 | test -d "$RESULTS" && touch "$RESULTS/of_a_stage"
END
output=$("$check_gpu" --without-gpu --stages "$folder/stages" "$folder/ways")
check "a failure is told by the exit code" test $? -eq 1
summary=$(cat "$folder/ways/summary.txt")
check "a good stage" matches "$summary" '^ok +[0-9]+ s  good$'
check "a bad one, with its code" matches "$summary" '^failed +[0-9]+ s  bad: exit code 3$'
check "and the end of its output" contains "$output" "  | the reason"
check "one that runs into its limit" matches "$summary" '^failed +[1-6] s  slow: ran into its limit of 1 s$'
check "one that cannot be done here" matches "$summary" '^skipped +0 s  absent: nothing here to do it with$'
check "one that needs a GPU" matches "$summary" '^skipped +0 s  device: no GPU$'
check "the last one ran after all these" matches "$summary" '^ok +[0-9]+ s  results$'
check "a stage finds the results' folder" test -e "$folder/ways/of_a_stage"
check "the log has what stages printed" contains "$(cat "$folder/ways/output.log")" "all is well"

# 4. The budget, and a choice of stages.
"$check_gpu" --without-gpu --budget 0 --stages "$folder/stages" "$folder/budget" >/dev/null
check "without time left nothing fails" test $? -eq 0
check "and nothing runs" test "$(grep -c 'budget of 0 s is used up' "$folder/budget/summary.txt")" -eq 5
"$check_gpu" --without-gpu --only '^good$' --stages "$folder/stages" "$folder/only" >/dev/null
check "--only runs what matches" test "$(wc -l <"$folder/only/summary.txt")" -eq 1

# 5. Wrong arguments.
"$check_gpu" --nonsense >/dev/null 2>&1
check "an unknown option is refused" test $? -eq 2
"$check_gpu" --budget soon >/dev/null 2>&1
check "a budget that is none is refused" test $? -eq 2

exit $((failures > 0))
