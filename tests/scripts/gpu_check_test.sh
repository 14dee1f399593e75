#!/usr/bin/env bash
# scripts/gpu_check.sh without a GPU and without anything built: what it would do, that the limits of a
# call fit, that no stage's end stops the next, what it refuses, and what it makes of figures.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
check_gpu=$repository/scripts/gpu_check.sh
folder=$(mktemp -d /tmp/elixir-gpu-check-XXXXXX)
trap 'rm -rf "$folder"' EXIT
export CUDA_VISIBLE_DEVICES=""  # on a machine with GPUs, too
unset PYTHON

# 1. The contents and the calls, and nothing done.
output=$("$check_gpu" --dry-run)
check "--dry-run ends well" test $? -eq 0
for file in bin/train_gpt2 bin/elixird lib/torch211/libelixir_cuda.so tests/kernels_gpu_test bench/link; do
  check "it names $file" matches "$output" "^  $file$"
done
for call in 1 2 3 4 5; do
  seconds=$(sed -n "s/^call $call: [0-9]* stages, \([0-9]*\) s of at most 540$/\1/p" <<<"$output")
  check "call $call takes less than nine minutes: ${seconds:-no time}" test "${seconds:-999}" -lt 540
  listed=$("$check_gpu" --dry-run "$call")
  check "call $call begins with the machine" matches "$listed" '^environment +host +[0-9]+ s  environment$'
  sum=$(awk '/^[a-z_0-9]+ +(host|gpu) +[0-9]+ s/ {sum += $3} END {print sum}' <<<"$listed")
  check "and its limits add up to what is said" test "$sum" -eq "$seconds"
done
first_call=$("$check_gpu" --dry-run 1)
line_of() { grep -n -m 1 "^$1 " <<<"$first_call" | cut -d: -f1; }
check "the tests come before training" test "$(line_of gpu_training)" -lt "$(line_of train_small)"
check "training before benchmarks" test "$(line_of train_small)" -lt "$(line_of link)"
printf '1 | long | host | %d | true\n' 300 240 >"$folder/stages"
output=$("$check_gpu" --dry-run --stages "$folder/stages" 1 2>&1)
check "limits that add up to nine minutes are refused" test $? -eq 1
check "with their sum" contains "$output" "540 s of at most 540"

# 2. No GPU.
output=$("$check_gpu" run 1 "$folder/none")
check "without a GPU it ends with 77" test $? -eq 77
check "says so" contains "$output" "no GPU here"
check "and does nothing" test ! -e "$folder/none"

# What pack makes, with stand-ins for programs and for torch.
packed=$folder/packed
mkdir -p "$packed/bin" "$packed/scripts" "$packed/tests" "$folder/site/torch"
cp -r "$check_gpu" "$repository/scripts/gpu_check" "$packed/scripts/"
printf 'elixir 0.1.0 abc\ntorch 2.11.0+cu130\nglibc 2.2.5\n' >"$packed/manifest.txt"
printf '#!/bin/sh\necho 0.1.0\n' >"$packed/bin/train_gpt2"
printf '#!/bin/sh\necho "{\\"params\\": 1000000}"\n' >"$packed/bin/elixirctl"
cat >"$packed/bin/elixir-run" <<'END'
#!/usr/bin/env python3
import json, os, sys
with open(sys.argv[sys.argv.index('--jsonl') + 1], 'w') as file:
    for step, ms in enumerate((900, 700, 10, 30, 20), 1):
        file.write(json.dumps({'step': step, 'step_ms': ms, 'tokens_s': 1e6 / ms, 'binding': 'h2d',
                               'exposed_ms': ms / 10}) + '\n')
print(os.environ.get('SAY', ''))
END
chmod +x "$packed"/bin/*
echo "__version__ = '2.11.0+cu130'" >"$folder/site/torch/version.py"
: >"$folder/site/torch/__init__.py"
export PYTHONPATH=$folder/site
run() { "$packed/scripts/gpu_check.sh" run 1 "$@" 2>&1; }

# 3. Every way for a stage to end.
cat >"$folder/stages" <<'END'
1 | good    | host | 5 | echo all is well | cat
1 | bad     | host | 5 | echo the reason; exit 3
1 | absent  | host | 5 | echo nothing here to do it with; exit 77
1 | device  | gpu  | 0 | true
2 | other   | host | 5 | true
1 | late    | host | 1 | test -d "$RESULTS" && touch "$RESULTS/of_a_stage"
END
output=$(run --without-gpu --stages "$folder/stages" "$folder/ways" --keep "$folder/kept/all.tar.gz")
check "a failure is told by the exit code" test $? -eq 1
summary=$(cat "$folder/ways/summary.txt")
check "a good stage" matches "$summary" '^ok +[0-9]+ s  good$'
check "a bad one, with its code" matches "$summary" '^failed +[0-9]+ s  bad: exit code 3$'
check "and the end of its output" contains "$output" "  | the reason"
check "one that cannot be done here" matches "$summary" '^skipped +[0-9]+ s  absent: nothing here to do it with$'
check "one that needs a GPU" matches "$summary" '^skipped +0 s  device: no GPU$'
check "the last one ran after all these" matches "$summary" '^ok +[0-9]+ s  late$'
check "another call's did not" test "$(wc -l <"$folder/ways/summary.txt")" -eq 5
check "a stage finds the results' folder" test -e "$folder/ways/of_a_stage"
check "the log has what stages printed" contains "$(cat "$folder/ways/output.log")" "all is well"
check "the summary has them, too" matches "$(cat "$folder/ways/summary.md")" '^\| bad \| \*\*failed\*\* \|.*exit code 3 \|$'
check "--keep has it all" contains "$(tar -tzf "$folder/kept/all.tar.gz")" "./summary.md"

# 4. Limits: what a stage leaves, later ones have; not more.
# cannot fail by chance: `long` may take a minute more, which `brief` leaves.
printf '1 | brief | host | 60 | true\n1 | long | host | 1 | sleep 2\n' >"$folder/stages"
run --without-gpu --stages "$folder/stages" "$folder/passed_on" >/dev/null
check "a stage has the time that earlier ones left" matches "$(cat "$folder/passed_on/summary.txt")" '^ok +[0-9]+ s  long$'
printf '1 | endless | host | 1 | sleep 60\n1 | after | host | 9 | true\n' >"$folder/stages"
run --without-gpu --stages "$folder/stages" "$folder/endless" >/dev/null
summary=$(cat "$folder/endless/summary.txt")
check "one that runs into its limit" matches "$summary" '^failed +[0-9]+ s  endless: ran into its limit of 1 s$'
check "and one after it" matches "$summary" '^ok +[0-9]+ s  after$'
run --without-gpu --only '^after$' --stages "$folder/stages" "$folder/only" >/dev/null
check "--only runs what matches" test "$(wc -l <"$folder/only/summary.txt")" -eq 1

# 5. Figures: steps after the first two; page-locking that was refused fails.
printf '1 | trained | host | 30 | train --model x --checkpoint-activations\n' >"$folder/stages"
run --without-gpu --stages "$folder/stages" "$folder/trained" >/dev/null
check "a training is measured" test $? -eq 0
summary=$(cat "$folder/trained/summary.md")
# 1000 tokens in 20 ms; 8 * 1e6 * 1000 operations in them.
check "its medians leave out two steps" matches "$summary" '^\| trained \| 50000 \| 20.0 \(10.0 – 30.0\) \| 0.4 \|'
check "with what was exposed and what binds" matches "$summary" '\| 2.0 \| h2d \| yes \| `train_gpt2 .*--model x'
SAY='warn event=not_page_locked text="refused"' \
  run --without-gpu --stages "$folder/stages" "$folder/unlocked" >/dev/null
check "memory that is not page-locked fails the stage" test $? -eq 1
check "and is told" matches "$(cat "$folder/unlocked/summary.md")" '\| \*\*no\*\* \|'
printf '{"not_page_locked_bytes": 5,\n"h2d_gb_s": 1}' >"$folder/link.json"
mkdir "$packed/bench"
printf '#!/bin/sh\ncat %s\n' "$folder/link.json" >"$packed/bench/link"
chmod +x "$packed/bench/link"
printf '1 | link | host | 30 | link\n' >"$folder/stages"
run --without-gpu --stages "$folder/stages" "$folder/link" >/dev/null
check "nor may the benchmark's memory be refused" test $? -eq 1
sed -i 's/: 5/: 0/' "$folder/link.json"
run --without-gpu --stages "$folder/stages" "$folder/link" >/dev/null
check "all of it page-locked is well" test $? -eq 0

# 6. Another torch, or none, or an older C library.
echo "__version__ = '2.10.1'" >"$folder/site/torch/version.py"
output=$(run --without-gpu "$folder/refused")
check "another torch is refused" test $? -eq 1
check "with both versions and a remedy" matches "$output" 'has torch 2.10.1 .*built with 2.11.0\+cu130;$'
output=$(PYTHONPATH='' PYTHON=$folder/no_python run --without-gpu "$folder/refused")
check "no torch is refused" test $? -eq 1
check "with a remedy" contains "$output" "PYTHON=/path/to/python3"
echo "__version__ = '2.11.3'" >"$folder/site/torch/version.py"
sed -i 's/^glibc .*/glibc 9.1/' "$packed/manifest.txt"
output=$(run --without-gpu "$folder/refused")
check "an older glibc is refused" test $? -eq 1
check "with what is needed" contains "$output" "need glibc 9.1"
check "nothing was written for these" test ! -e "$folder/refused"

# 7. A machine whose memory grows when it is touched, and one whose does not.
touch_on() {  # touch_on MOST_MB: 8 MB are wanted, 3 MB show
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packed/scripts/gpu_check python3 - "$1" 2>&1 <<'END'
import sys
import touch_memory
most_bytes = int(float(sys.argv[1]) * 1e6)
touch_memory.PIECE_BYTES, touch_memory.SPARE_BYTES, touch_memory.PATIENCE_S = 1 << 20, 0, 0
touch_memory.be_the_first_to_go = lambda: None
touch_memory.os.sched_getaffinity = lambda _: {0}
touched = []
def touch(number, really=touch_memory.touch):
    touched.append(number)
    return really(number)
touch_memory.touch = touch
# What shows is always a little more than is used, up to the most.
touch_memory.memory = lambda _: min(most_bytes, 3_000_000 + len(touched) * (1 << 20)) - len(touched) * (1 << 20)
sys.argv[1] = '0.008'
code = touch_memory.main()
print(f'{len(touched)} pieces')
sys.exit(code)
END
}
output=$(touch_on 100)
check "memory that grows is touched" test $? -eq 0
check "all that is wanted" contains "$output" "8 pieces"
output=$(touch_on 5)
check "memory that does not grow is told" test $? -eq 1
check "and is not overdrawn" contains "$output" "4 pieces"

# 8. Wrong arguments.
refused() { "$check_gpu" "$@" >/dev/null 2>&1; test $? -eq 2; }
check "an unknown option is refused" refused --nonsense
check "an unknown word is refused" refused nonsense
check "nothing at all is refused" refused
check "a call that is none is refused" refused run 6
check "an option without its value is refused" refused run 1 --only

exit $((failures > 0))
