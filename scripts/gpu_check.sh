#!/usr/bin/env bash
# Builds Elixir on a machine with a GPU and checks there what needs one: one call, under nine minutes,
# the most important first. A stage that fails, or runs into its limit, stops none after it.
#
#   scripts/gpu_check.sh [OPTIONS] [RESULTS]   results go to RESULTS (default: build/gpu_check)
#
#   --dry-run        print the stages and do nothing
#   --only REGEX     the stages whose names match
#   --stages FILE    these stages instead, one a line as in STAGES below
#   --budget SECONDS for all stages together (default: 530)
#   --without-gpu    run what needs no GPU where there is none
#
# RESULTS/summary.txt has a line a stage (ok, failed or skipped, seconds), RESULTS/output.log all that
# they printed. The packages of Debian that the machine lacks come from build/gpu_host_deps
# (scripts/gpu_host_deps.sh), if that is there; LibTorch from python3's torch, or .venv.
# Exit: 0 no stage failed; 1 one did; 2 the command line; 77 there is no GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# NAME | host or gpu: gpu stages are skipped without one | LIMIT in seconds | COMMAND
# A command runs in bash, in the repository's root, with BUILD, PREFIX and RESULTS; it may call the
# functions below. 77 means that it cannot be done here.
STAGES=(
  'deps          | host |  30 | unpack_deps'
  'configure     | host |  60 | configure'
  'build_kernels | host | 100 | ninja -C "$BUILD" kernels_gpu_test bench_kernels'
  'kernels       | gpu  |  90 | run_ctest -R "^kernels_gpu_test$"'
  'build         | host | 240 | ninja -k 0 -C "$BUILD"'
  'gpu_tests     | gpu  | 120 | run_ctest -L gpu -E "^kernels_gpu_test$"'
  'memcheck      | gpu  |  60 | sanitize memcheck'
  'racecheck     | gpu  |  60 | sanitize racecheck'
  'bench_kernels | gpu  |  40 | run_bench kernels'
  'doctor        | gpu  |  30 | "$BUILD/bin/elixirctl" doctor --gpu'
  'bench_link    | gpu  |  40 | run_bench link --device cuda'
  'interception  | gpu  |  30 | run_bench interception --device cuda'
  'train_small   | gpu  |  90 | train_small'
  'train_4b      | gpu  | 120 | train_4b'
)

unpack_deps() {
  if [[ ! -f build/gpu_host_deps/deps.tar.gz ]]; then
    echo "no build/gpu_host_deps: the machine's own packages are used"
    return 77
  fi
  rm -rf "$PREFIX"
  scripts/gpu_host_deps.sh unpack "$PREFIX"
}

torch_folder() {
  local python
  for python in python3 .venv/bin/python; do
    "$python" - <<'END' 2>/dev/null && return
import importlib.util
print(importlib.util.find_spec("torch").submodule_search_locations[0])
END
  done
  echo "no python3 here has torch" >&2
  return 1
}

configure() {
  local torch options=()
  torch=$(torch_folder) || return
  [[ -f $PREFIX/initial_cache.cmake ]] && options+=(-C "$PREFIX/initial_cache.cmake")
  command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  rm -f "$BUILD/CMakeCache.txt"
  cmake "${options[@]}" -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG -fno-omit-frame-pointer" \
    -DLIBTORCH_ROOT="$torch" -DELIXIR_WITH_CUDA=ON
}

# Without a GPU these tests would be skipped, which is not what was asked for.
run_ctest() {
  ELIXIR_REQUIRE_GPU=1 ctest --test-dir "$BUILD" --output-on-failure --no-tests=error "$@"
}

# A tool of compute-sanitizer over the kernels' test, on one part in 400: it slows kernels down. Without
# the test that has CUDA refuse a launch, which the tool would report.
sanitize() {
  local program
  program=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
    echo "compute-sanitizer is not installed"
    return 77
  }
  ELIXIR_REQUIRE_GPU=1 ELIXIR_GPU_TEST_PART=400 "$program" --tool "$1" --error-exitcode 1 \
    "$BUILD/tests/kernels_gpu_test" --gtest_filter='-*ARefusedLaunch*'
}

# bench/NAME [FLAGS]; its JSON goes to RESULTS/NAME.json.
run_bench() {
  "$BUILD/bench/$1" --json "${@:2}" >"$RESULTS/$1.json" && cat "$RESULTS/$1.json"
}

# GPT-2 small in BF16, states on the host, half and all of them on the device.
train_small() {
  local share
  for share in 0 0.5 1; do
    echo "--gpu-home-share $share"
    "$BUILD/bin/elixir-run" -n 1 "$BUILD/bin/train_gpt2" --model small --dtype bf16 --device cuda \
      --batch 8 --seq 1024 --steps 20 --log-every 5 --gpu-home-share "$share" || return
  done
}

# GPT-2 4b under a cap of 40 GiB, activations checkpointed.
train_4b() {
  "$BUILD/bin/elixir-run" -n 1 "$BUILD/bin/train_gpt2" --model 4b --dtype bf16 --device cuda \
    --batch 8 --seq 1024 --steps 4 --log-every 1 --gpu-memory 40GiB --checkpoint-activations
}

has_gpu() {
  [[ ${CUDA_VISIBLE_DEVICES-all} =~ ^(|-1.*)$ ]] && return 1
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1
}

refuse() { echo "gpu_check: $*; scripts/gpu_check.sh --help" >&2; exit 2; }

RESULTS='' dry_run=no only='' budget=530 without_gpu=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --dry-run) dry_run=yes ;;
    --without-gpu) without_gpu=yes ;;
    --only | --stages | --budget)
      [[ $# -gt 1 ]] || refuse "$1 needs a value"
      case "$1" in
        --only) only=$2 ;;
        --stages) mapfile -t STAGES <"$2" || refuse "no stages in '$2'" ;;
        --budget) [[ $2 =~ ^[0-9]+$ ]] || refuse "--budget is in seconds, not '$2'"; budget=$2 ;;
      esac
      shift ;;
    -*) refuse "unknown option '$1'" ;;
    *) [[ -z $RESULTS ]] || refuse "one RESULTS, not '$RESULTS' and '$1'"; RESULTS=$1 ;;
  esac
  shift
done
RESULTS=${RESULTS:-build/gpu_check}

# name, kind, limit and command of one line of STAGES.
split_stage() {
  local untrimmed
  IFS='|' read -r name kind limit untrimmed <<<"$1"
  name=${name// /} kind=${kind// /} limit=${limit// /} command=${untrimmed# }
}

if [[ $dry_run == yes ]]; then
  for stage in "${STAGES[@]}"; do
    split_stage "$stage"
    [[ $name =~ $only ]] && printf '%-14s %-4s %4d s  %s\n' "$name" "$kind" "$limit" "$command"
  done
  exit 0
fi

mkdir -p "$RESULTS" || refuse "cannot write to '$RESULTS'"
RESULTS=$(cd "$RESULTS" && pwd)
BUILD=$PWD/build/gpu PREFIX=$PWD/build/gpu_host_prefix
export RESULTS BUILD PREFIX
export -f unpack_deps torch_folder configure run_ctest sanitize run_bench train_small train_4b
summary=$RESULTS/summary.txt log=$RESULTS/output.log
: >"$summary" && : >"$log"
failures=0

report() {  # report OUTCOME SECONDS NAME [WHY]
  printf '%-7s %4d s  %s\n' "$1" "$2" "$3${4:+: $4}" | tee -a "$summary"
}

# The outcome of a stage that ended with `code` after `seconds`; its output is in $stage_log.
judge() {
  local code=$1 seconds=$2 allowed=$3
  case $code in
    0) report ok "$seconds" "$name" ;;
    77) report skipped "$seconds" "$name" "$(tail -n 1 "$stage_log")" ;;
    *)
      failures=$((failures + 1))
      tail -n 40 "$stage_log" | sed 's/^/  | /'
      if ((code == 124 || code == 137)); then
        report failed "$seconds" "$name" "ran into its limit of $allowed s"
      else
        report failed "$seconds" "$name" "exit code $code"
      fi ;;
  esac
}

run_stage() {
  local left=$((budget - SECONDS)) began=$SECONDS code
  if ((left < 2)); then
    report skipped 0 "$name" "the budget of $budget s is used up"
    return
  fi
  local allowed=$((limit < left ? limit : left))
  timeout -k 5 "$allowed" bash -c "$command" >"$stage_log" 2>&1 </dev/null
  code=$?
  { echo "=== $name: $command"; cat "$stage_log"; } >>"$log"
  judge "$code" $((SECONDS - began)) "$allowed"
}

gpu=yes
has_gpu || gpu=no
stage_log=$(mktemp)
trap 'rm -f "$stage_log"' EXIT
for stage in "${STAGES[@]}"; do
  split_stage "$stage"
  [[ $name =~ $only ]] || continue
  if [[ $gpu == no && ($kind == gpu || $without_gpu == no) ]]; then
    report skipped 0 "$name" "no GPU"
  else
    run_stage
  fi
done
echo "gpu_check: $summary"
if ((failures > 0)); then exit 1; fi
if [[ $gpu == no && $without_gpu == no ]]; then
  echo "gpu_check: no GPU here (no /dev/nvidia0, no nvidia-smi, or CUDA_VISIBLE_DEVICES hides them)"
  exit 77
fi
