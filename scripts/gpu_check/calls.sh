# shellcheck shell=bash
# The five calls of scripts/gpu_check.sh: their stages, most important first, and what a stage runs.

# The most that the limits of a call may add up to.
CALL_SECONDS=540

# CALL | NAME | host or gpu: gpu stages are skipped without one | LIMIT in seconds | COMMAND
# What a stage leaves of its limit the later ones of its call may use. A command runs in bash, in the
# folder of the unpacked file, and may call the functions below. 77: it cannot be done here.
STAGES=(
  '1 | environment      | host |  15 | environment'
  '1 | touch_memory     | host |  60 | touch_memory 100'
  '1 | doctor           | gpu  |  30 | doctor'
  '1 | kernels          | gpu  |  75 | gpu_test kernels_gpu_test'
  '1 | gpu_tests        | gpu  |  60 | gpu_test client_cuda_gpu_test'
  '1 | gpu_training     | gpu  | 130 | gpu_test client_gpu_training_test "${TRAINING_TESTS[@]}"'
  '1 | train_small      | gpu  |  40 | train_small 0'
  '1 | train_small_half | gpu  |  40 | train_small 0.5'
  '1 | train_small_gpu  | gpu  |  40 | train_small 1'
  '1 | link             | gpu  |  40 | link'

  '2 | environment        | host |  15 | environment'
  '2 | touch_memory       | host |  60 | touch_memory 100'
  '2 | train_4b           | gpu  | 100 | train_4b --no-plan'
  '2 | train_4b_immediate | gpu  |  60 | train_4b --no-plan --update immediate'
  '2 | probe              | gpu  |  30 | probe'
  '2 | train_4b_planned   | gpu  |  60 | train_4b_planned'
  '2 | train_xl_early     | gpu  |  45 | train_xl --update early'
  '2 | train_xl_deferred  | gpu  |  35 | train_xl --update deferred'
  '2 | train_xl_swing     | gpu  |  35 | train_xl --update deferred --swing-stride 3'
  '2 | train_4b_share     | gpu  |  60 | train_4b --gpu-state-share 0.35'
  '2 | device_rates       | gpu  |  35 | device_rates'

  '3 | environment  | host |  15 | environment'
  '3 | touch_memory | host |  60 | touch_memory 100'
  '3 | deepspeed    | gpu  | 100 | deepspeed'
  '3 | probe        | gpu  |  30 | probe'
  '3 | peers        | gpu  | 330 | peers'

  '4 | environment   | host |  15 | environment'
  '4 | touch_memory  | host |  60 | touch_memory 120'
  '4 | train_15b     | gpu  | 200 | train_15b'
  '4 | memcheck      | gpu  |  60 | sanitize memcheck'
  '4 | racecheck     | gpu  |  60 | sanitize racecheck'
  '4 | bench_kernels | gpu  |  35 | bench kernels'
  '4 | interception  | gpu  |  25 | bench interception --device cuda'
  '4 | gpu_end_to_end | gpu |  50 | gpu_end_to_end'
  '4 | bench_adam    | host |  30 | bench adam'

  '5 | environment  | host |  15 | environment'
  '5 | touch_memory | host |  60 | touch_memory 60'
  '5 | planned_small | gpu | 60 | planned small --gpu-memory 8GiB'
  '5 | planned_xl   | gpu  |  40 | planned xl --gpu-memory 16GiB --checkpoint-activations'
  '5 | planned_4b   | gpu  |  50 | planned 4b --gpu-memory 40GiB --checkpoint-activations'
  '5 | kept_4b      | gpu  |  50 | planned 4b --gpu-memory 40GiB --activations auto'
  '5 | planned_10b  | gpu  |  70 | planned 10b --gpu-memory 80GiB --checkpoint-activations'
  '5 | fine_tune    | gpu  | 120 | fine_tune'
  '5 | families     | gpu  |  70 | families'
)

# Sizes. The smallest ones pass through the same code.
if [[ ${TINY:-no} == yes ]]; then
  TOUCH_GB=0.5
  TRAINING_TESTS=('--gtest_filter=*Clipping*')
  TEST_PART=4000
  SMALL=(--model nano --batch 2 --seq 64 --steps 4)
  BIG_4B=(--model nano --batch 2 --seq 64 --steps 4 --gpu-memory 4GiB)
  BIG_15B=(--model nano --batch 2 --seq 64 --steps 4)
  XL=(--model nano --batch 2 --seq 64 --steps 4)
  LINK=(--chunk-numel 262144 --chunks 4)
  KERNELS=(--numel 1048576 --rounds 2)
  ADAM=(--numel 4194304 --rounds 2)
  PEERS=(--model nano --batch 2 --seq 64 --steps 3 --rounds 1)
  PROBE=(--quick) RATES=(--tiny)
  PLANNED=(--batch 2 --seq 64 --steps 22)
else
  TOUCH_GB='' TEST_PART=1 TRAINING_TESTS=()
  SMALL=(--model small --batch 8 --seq 1024 --steps 20)
  BIG_4B=(--model 4b --batch 8 --seq 1024 --steps 8 --gpu-memory 40GiB --checkpoint-activations)
  BIG_15B=(--model 15b --batch 8 --seq 1024 --steps 6 --checkpoint-activations)
  XL=(--model xl --batch 8 --seq 1024 --steps 10 --checkpoint-activations)
  LINK=() KERNELS=() ADAM=() PROBE=() RATES=()
  PLANNED=(--batch 8 --seq 1024 --steps 22)
  PEERS=(--model 4b --batch 8 --seq 1024 --checkpoint-activations --gpu-memory 40GiB --steps 4 --rounds 3)
fi

environment() { "$PYTHON" "$HERE/scripts/gpu_check/environment.py" "$RESULTS/environment.json"; }
# What a later stage takes of host memory: some virtual machines grow to it only when it is touched.
touch_memory() { "$PYTHON" "$HERE/scripts/gpu_check/touch_memory.py" "${TOUCH_GB:-$1}"; }

# What the GPU and its link are, the attributes of page-locking among it.
doctor() {
  "$HERE/bin/elixirctl" doctor --gpu --json >"$RESULTS/doctor.json"
  local code=$?
  cat "$RESULTS/doctor.json"
  return $code
}

# A program of tests; without a GPU it fails, where it would otherwise be skipped.
gpu_test() {
  ELIXIR_REQUIRE_GPU=1 ELIXIR_GPU_TEST_PART=$TEST_PART "$HERE/tests/$1" "${@:2}" 2>&1 |
    tee -a "$RESULTS/LastTest.log"
  return "${PIPESTATUS[0]}"
}

gpu_end_to_end() {
  ELIXIR_REQUIRE_GPU=1 ELIXIR_BIN_DIR=$HERE/bin "$PYTHON" -B "$HERE/tests/e2e/gpu_test.py" 2>&1 |
    tee -a "$RESULTS/LastTest.log"
  return "${PIPESTATUS[0]}"
}

# elixir-train on a Hugging Face folder, planned by default, beside transformers.
fine_tune() {
  local size=()
  [[ $TINY == yes ]] && size=(--tiny)
  "$PYTHON" -B "$HERE/scripts/gpu_check/fine_tune.py" --name "$STAGE" --results "$RESULTS" "${size[@]}"
}

# The first losses of each family in FP32, beside transformers on the same device.
families() {
  local device=cpu
  compgen -G '/dev/nvidia[0-9]*' >/dev/null && device=cuda
  ELIXIR_FOREIGN_PYTHON=this ELIXIR_FOREIGN_DEVICE=$device "$PYTHON" -B "$HERE/tests/e2e/foreign_losses_test.py" \
    2>&1 | tee -a "$RESULTS/LastTest.log"
  return "${PIPESTATUS[0]}"
}

# train_gpt2 in BF16; steps in NAME.jsonl, a trace in NAME.trace.json, figures in NAME.json. Fails when
# anything is not page-locked.
train() {
  "$PYTHON" "$HERE/scripts/gpu_check/measure_training.py" --name "$STAGE" --results "$RESULTS" -- \
    --device cuda --dtype bf16 --log-every 1 --data "$HERE/data/text.txt" "$@"
}
train_small() { train "${SMALL[@]}" --gpu-state-share "$1"; }
train_4b() { train "${BIG_4B[@]}" "$@"; }
train_4b_planned() {
  if [[ ! -f $ELIXIR_MACHINE_FILE ]]; then
    echo "there is no probe to plan by"
    return 77
  fi
  train_4b
}
# As a user starts it. The first one finds no figures of this GPU: it measures, and says for how long. After
# 20 steps each compares itself with its plan.
planned() {
  local model=$1
  [[ $TINY == yes ]] && model=nano
  env -u ELIXIR_MACHINE_FILE XDG_CACHE_HOME="$WORK/cache" "$PYTHON" "$HERE/scripts/gpu_check/measure_training.py" \
    --name "$STAGE" --results "$RESULTS" -- --device cuda --dtype bf16 --log-every 1 --data "$HERE/data/text.txt" \
    --model "$model" "${PLANNED[@]}" "${@:2}"
}
# All states in host memory; norms that are taken and never clip.
train_xl() { train "${XL[@]}" --gpu-state-share 0 --clip-norm 1000 "$@"; }
train_15b() { train "${BIG_15B[@]}" --gpu-state-share 0.5; }

# From now on train_gpt2 has a plan chosen for this machine, where no flag of a plan is given.
probe() { "$HERE/bin/elixirctl" probe --device cuda "${PROBE[@]}" --output "$RESULTS/probe.json"; }

# What torch alone reaches, beside the probe's figures.
device_rates() { "$PYTHON" -B "$HERE/scripts/gpu_check/device_rates.py" "$RESULTS/$STAGE.json" "${RATES[@]}"; }

# bench NAME [FLAGS]; its JSON goes to RESULTS/STAGE.json.
bench() {
  local sizes=()
  case $1 in
    kernels) sizes=("${KERNELS[@]}") ;;
    adam) sizes=("${ADAM[@]}") ;;
    link) sizes=("${LINK[@]}") ;;
  esac
  "$HERE/bench/$1" --json "${sizes[@]}" "${@:2}" >"$RESULTS/$STAGE.json" || return
  cat "$RESULTS/$STAGE.json"
}

link() {
  bench link --device cuda || return
  grep -q '"not_page_locked_bytes": 0,' "$RESULTS/$STAGE.json" && return
  echo "page-locked memory is what the runtime needs, and some was refused: not_page_locked_bytes above"
  return 1
}

# A tool of compute-sanitizer over the kernels' test, on one part in 400: it slows kernels down. Without
# the test that has CUDA refuse a launch, which the tool would report.
sanitize() {
  local program
  program=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
    echo "compute-sanitizer is not installed"
    return 77
  }
  ELIXIR_REQUIRE_GPU=1 ELIXIR_GPU_TEST_PART=$((TEST_PART == 1 ? 400 : TEST_PART)) \
    "$program" --tool "$1" --error-exitcode 1 \
    "$HERE/tests/kernels_gpu_test" --gtest_filter='-*ARefusedLaunch*'
}

# What call 3 compares with, from wheels; compiles DeepSpeed's CPU Adam, so that no run does.
deepspeed() {
  if ! compgen -G "$HERE/wheels/*.whl" >/dev/null; then
    echo "no wheels of DeepSpeed were packed (scripts/gpu_check.sh wheels): peers leaves its rows out"
    return 77
  fi
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$WORK/site" "$HERE"/wheels/*.whl &&
    with_deepspeed "$PYTHON" -c 'import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
parameter = torch.nn.Parameter(torch.ones(1024))
parameter.grad = torch.ones(1024)
DeepSpeedCPUAdam([parameter], lr=0.1).step()' && touch "$WORK/deepspeed_works"
}
with_deepspeed() {
  PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH} PATH=$WORK/site/bin:$PATH DS_SKIP_CUDA_CHECK=1 \
    TORCH_EXTENSIONS_DIR=$WORK/extensions "$@"
}

# Elixir and other systems in turn, as long as the stage's time allows.
peers() {
  if [[ ! -f $HERE/bench/peers.py ]]; then
    echo "bench/peers.py was not packed"
    return 77
  fi
  local systems=(elixir fsdp2)
  if [[ -f $WORK/deepspeed_works ]]; then systems+=(zero3 zero2); else echo "DeepSpeed's rows are left out"; fi
  with_deepspeed "$PYTHON" "$HERE/bench/peers.py" --build "$HERE" --python "$PYTHON" --data "$HERE/data/text.txt" \
    --device cuda --ranks 1 --systems "${systems[@]}" --budget "$((ALLOWED - 10))" "${PEERS[@]}" --json \
    >"$RESULTS/$STAGE.json" || return
  cat "$RESULTS/$STAGE.json"
}

# call, name, kind, limit and command of one line of STAGES.
split_stage() {
  local untrimmed
  IFS='|' read -r call name kind limit untrimmed <<<"$1"
  call=${call// /} name=${name// /} kind=${kind// /} limit=${limit// /}
  command=${untrimmed#"${untrimmed%%[! ]*}"}
}

# The stages of a call, or of all; fails when the limits of one add up to more than it may take.
say_calls() {
  local of stage call name kind limit command seconds count outcome=0
  for of in ${1:-1 2 3 4 5}; do
    seconds=0 count=0
    for stage in "${STAGES[@]}"; do
      split_stage "$stage"
      [[ $call == "$of" ]] || continue
      ((count += 1, seconds += limit))
      printf '%-18s %-4s %4d s  %s\n' "$name" "$kind" "$limit" "$command"
    done
    echo "call $of: $count stages, $seconds s of at most $CALL_SECONDS"
    if ((count == 0 || seconds >= CALL_SECONDS)); then
      echo "gpu_check: call $of does not fit" >&2
      outcome=1
    fi
  done
  return $outcome
}
