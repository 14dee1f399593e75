#!/usr/bin/env bash
# Builds Elixir and trains a small GPT-2 with it: two trainer processes on the CPU, their optimizer
# states in elixird, a quarter of the model's chunks in each trainer's rCache. Shows elixirctl's
# status while it runs, and at the end what the model has learnt: a text that it continues. The last
# line is the result: done: first_loss ... last_loss ...
#
#   scripts/demo.sh [--steps N] [--data FILE...] [train_gpt2's other flags]
#
# Each rank takes 4 sequences of 128 bytes a step, unless --batch says otherwise. Without --data the
# text is the Python standard library's sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 0
fi

STATUS_EVERY_S=20

scripts/build.sh release -- elixir_programs
bin=build/release/bin
folder=$(mktemp -d -t elixir-demo-XXXXXX)  # an elixird of its own: others are left alone
launcher='' reader='' watcher=''

clean_up() {
  trap '' INT TERM
  if [[ -n $launcher ]] && kill -0 "$launcher" 2>/dev/null; then
    kill -TERM "$launcher" 2>/dev/null || true
    wait "$launcher" 2>/dev/null || true
  fi
  [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# Rank 0's result is kept for the end, without its prefix.
show_output() {
  local line
  while IFS= read -r line; do
    if [[ $line == "[rank 0] done: "* ]]; then
      printf '%s\n' "${line#"[rank 0] "}" >"$folder/result"
    else
      printf '%s\n' "$line"
    fi
  done
}
mkfifo "$folder/output"
show_output <"$folder/output" &
reader=$!

[[ " $* " == *" --batch"* ]] || set -- --batch 4 "$@"
echo "demo: $bin/elixir-run -n 2 train_gpt2 --model nano $*"
[[ " $* " == *" --export"* ]] || set -- --export "$folder/model" "$@"
"$bin/elixir-run" -n 2 --runtime-dir "$folder/run" train_gpt2 --model nano "$@" \
  >"$folder/output" 2>&1 &
launcher=$!

show_status() {
  trap 'kill "$pause" 2>/dev/null; exit' TERM
  local wait_s=5
  while true; do
    sleep "$wait_s" &
    pause=$!
    wait "$pause"
    echo
    echo "--- elixirctl status ---"
    "$bin/elixirctl" status --runtime-dir "$folder/run" || true
    echo "------------------------"
    wait_s=$STATUS_EVERY_S
  done
}
show_status &
watcher=$!

code=0
wait "$launcher" || code=$?
launcher=''
kill "$watcher" 2>/dev/null || true
wait "$watcher" 2>/dev/null || true
watcher=''
wait "$reader" || true

if [[ $code == 0 && -d $folder/model ]]; then
  echo "--- elixir-generate: what it has learnt ---"
  "$bin/elixir-run" -n 1 --runtime-dir "$folder/run" elixir-generate "$folder/model" \
    --prompt "def " --length 100 --temperature 0.5 &
  launcher=$!
  wait "$launcher" || code=$?
  launcher=''
  echo "-------------------------------------------"
fi
[[ ! -f $folder/result ]] || cat "$folder/result"
exit "$code"
