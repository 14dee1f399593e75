#!/usr/bin/env bash
# scripts/repeat.sh, over a build folder that only has tests: it counts how often each of them failed.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
folder=$(mktemp -d /tmp/elixir-repeat-XXXXXX)
trap 'rm -rf "$folder"' EXIT

mkdir -p "$folder/scripts" "$folder/build/release"
cp "$repository/scripts/repeat.sh" "$repository/scripts/failed_tests.py" "$folder/scripts/"
# Fails in its second and its fourth run.
cat >"$folder/now_and_then" <<'PROGRAM'
#!/usr/bin/env bash
echo x >>"$0.runs"
(($(wc -l <"$0.runs") % 2 == 1)) || { echo "by chance"; exit 1; }
PROGRAM
chmod +x "$folder/now_and_then"
cat >"$folder/build/release/CTestTestfile.cmake" <<LIST
add_test(good "true")
add_test(now_and_then "$folder/now_and_then")
add_test(rate "false")
set_tests_properties(rate PROPERTIES LABELS timing)
LIST

run() { output=$("$folder/scripts/repeat.sh" "$@" 2>&1); code=$?; }
no_loop_is_left() { ! pgrep -f "$folder/scripts/repeat.sh" >/dev/null; }

run 4
check "a test that failed by chance fails it" test "$code" -eq 1
check "and is counted" matches "$output" '^now_and_then: failed 2 of 4 times$'
check "others are not told of" test "$(grep -c '^good: failed' <<<"$output")" -eq 0
check "timing tests are left out" contains "$output" "2 tests, 8 runs, 1 tests failed at least once"
check "what it printed is kept" grep -q "by chance" "$folder/build/repeat/release/now_and_then.2.log"
check "the busy loops are gone" no_loop_is_left

run 3 good
check "names choose" contains "$output" "1 tests, 3 runs, 0 tests failed"
check "and all passed" test "$code" -eq 0

run 2 nothing_like_it
check "a name without a test is an error" test "$code" -eq 2
run
check "so is no number" test "$code" -eq 2
run 2 --preset tsan
check "and a preset that is not built" contains "$output" "scripts/build.sh tsan"
exit $((failures > 0))
