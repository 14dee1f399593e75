#!/usr/bin/env bash
# scripts/fuzz.sh, with programs that stand in for libFuzzer's targets: a finding fails it and is shown with
# the command that repeats it, and so does a control that finds nothing.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
folder=$(mktemp -d /tmp/elixir-fuzz-XXXXXX)
trap 'rm -rf "$folder"' EXIT

mkdir -p "$folder/scripts" "$folder/tests/fuzz/corpus/good" "$folder/build/asan/fuzz"
cp "$repository/scripts/fuzz.sh" "$folder/scripts/"
touch "$folder/tests/fuzz/corpus/good/input"

# program NAME: a target, whose text is the input of this function.
program() {
  touch "$folder/tests/fuzz/fuzz_$1.cpp"
  { echo '#!/usr/bin/env bash'; cat; } >"$folder/build/asan/fuzz/fuzz_$1"
  chmod +x "$folder/build/asan/fuzz/fuzz_$1"
}
control_that_works() { program planted <<<'echo "AddressSanitizer: heap-buffer-overflow"; exit 1'; }
control_that_works
program seeds </dev/null
rm "$folder/tests/fuzz/fuzz_seeds.cpp"
program good <<'PROGRAM'
echo "$@" >arguments
echo "#1024 DONE cov: 37 ft: 90 corp: 5/1Kb"
echo "Done 1024 runs in 2 second(s)"
echo "stat::number_of_executed_units: 1024"
PROGRAM
program bad <<'PROGRAM'
for argument; do [[ $argument != -artifact_prefix=* ]] || echo x >"${argument#-artifact_prefix=}crash-1"; done
echo "runtime error: index 7 out of bounds"
exit 77
PROGRAM

run() { output=$("$folder/scripts/fuzz.sh" --no-build "$@" 2>&1); code=$?; }

run --list
check "the targets are listed, without the control" test "$output" = $'bad\ngood'

run --executions 1000 good
check "a clean run ends with 0" test "$code" -eq 0
check "inputs and coverage are told" grep -qE '^good +1024 +2 +37 +clean$' <<<"$output"
check "the corpus and the limits are the target's" \
  grep -q -- '-max_len=.*-rss_limit_mb=.*-timeout=.*-runs=1000.*tests/fuzz/corpus/good' "$folder/arguments"

run
check "a finding ends with 1" test "$code" -eq 1
check "what failed is shown" contains "$output" "index 7 out of bounds"
check "and what repeats it" contains "$output" "build/asan/fuzz/fuzz_bad build/fuzz/findings/bad/crash-1"
check "the others are run" grep -qE '^good .* clean$' <<<"$output"

program slow <<'PROGRAM'
for argument; do
  [[ ! -f $argument ]] || exit 0  # alone it is fast enough
  [[ $argument != -artifact_prefix=* ]] || echo x >"${argument#-artifact_prefix=}timeout-1"
done
exit 70
PROGRAM
run slow
check "an input that was slow once is no finding" test "$code" -eq 0
check "but is told" grep -qE '^slow .* cut short' <<<"$output"

program planted </dev/null
run good
check "a control that finds nothing ends with 1" test "$code" -eq 1
check "and is told" contains "$output" "the control"
control_that_works

run unheard_of
check "an unknown target ends with 2" test "$code" -eq 2
check "and the known ones are named" contains "$output" "bad good slow"

exit "$((failures > 0))"
