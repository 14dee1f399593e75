#!/usr/bin/env bash
# scripts/test.sh: its steps and their order, what a fault in one does to the others, and that a slow machine
# leaves steps out and names them. Its scripts and ctest are stand-ins.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
folder=$(mktemp -d /tmp/elixir-test-sh-XXXXXX)
trap 'rm -rf "$folder"' EXIT

mkdir -p "$folder/scripts" "$folder/bin" "$folder/build/asan/fuzz"
cp "$repository/scripts/test.sh" "$folder/scripts/"
for name in setup.sh foreign_setup.sh build.sh fuzz.sh tidy.py ci_minutes.sh failed_tests.py; do
  printf '#!/usr/bin/env bash\necho "ran: %s $*"\n' "$name" >"$folder/scripts/$name"
done
echo NEWEST_TORCH=2.15.0 >>"$folder/scripts/setup.sh"
printf '#!/usr/bin/env bash\ncat "$(dirname "$0")/changed.$1"\n' >"$folder/scripts/sanitizer_tests.py"
printf 'a_test a_test\nno_program \n' | tee "$folder/scripts/changed.asan" >"$folder/scripts/changed.tsan"
echo plan >"$folder/scripts/changed.fuzz"
# Presets whose name stands in the file `broken` fail.
cat >"$folder/bin/ctest" <<'PROGRAM'
#!/usr/bin/env bash
preset=$(basename "$2")
echo "ran: ctest $preset $*"
echo "100% tests passed of $preset"
! grep -qs "$preset" "$(dirname "$0")/broken"
PROGRAM
printf '#!/usr/bin/env bash\nshift; exec "$@"\n' >"$folder/bin/setarch"
chmod +x "$folder"/scripts/* "$folder"/bin/*

run() {
  mkdir -p "$folder"/build/{release,release-torch215,asan,tsan}
  output=$(PATH="$folder/bin:$PATH" "$folder/scripts/test.sh" "$@" 2>&1); code=$?
}
steps() { sed -n 's/^=== \([a-z_.]*\)$/\1/p' <<<"$output" | head -11 | paste -sd ' '; }

run
check "it passes" test "$code" -eq 0
check "all steps run, the release build first" test "$(steps)" = \
  "setup foreign_setup release.build release.tests newest_torch.build newest_torch.tests tidy asan.build asan.tests fuzz tsan.build"
check "sanitizers see what has changed" contains "$output" "ran: build.sh asan -- fuzz_seeds fuzz_planted fuzz_plan a_test"
check "and all of its entries" contains "$output" "-R ^(a_test|no_program)\$"
check "the newest torch has the tests of interception" matches "$output" \
  "^ran: ctest release-torch215 .*\^\(client_interception_test\|.*\)\\\$"
check "nothing is left out" test "$(grep -c "left out" <<<"$output")" -eq 0

echo release >"$folder/bin/broken"
run
check "a fault fails it" test "$code" -eq 1
check "and is named" contains "$output" "failed: release.tests"
check "the steps after it run" contains "$output" "ran: ctest tsan"
rm "$folder/bin/broken"

for what in asan tsan fuzz; do : >"$folder/scripts/changed.$what"; done
run
check "without changed code sanitizers build nothing" test "$(grep -c "ran: build.sh [at]san" <<<"$output")" -eq 0
check "and this is said" contains "$output" "tsan: no code that it has tests of has changed"

export ELIXIR_TEST_MINUTES=-1
run
check "a slow machine is no fault" test "$code" -eq 0
check "the release tests run on it" contains "$output" "ran: ctest release"
check "the rest is left out" test "$(grep -c "ran: ctest asan" <<<"$output")" -eq 0
check "and is named at the end" test "$(tail -n 1 <<<"$output")" = "left out, for time: newest_torch tidy asan tsan"
check "with the reason" contains "$output" "would not have ended within -1 minutes"
exit $((failures > 0))
