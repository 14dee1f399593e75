# shellcheck shell=bash
# scripts/gpu_check.sh run: one call, on the machine with the GPU.

has_gpu() {
  [[ ${CUDA_VISIBLE_DEVICES-all} =~ ^(|-1.*)$ ]] && return 1
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1
}

# The first word of a line of manifest.txt is its key.
packed_with() { sed -n "s/^$1 //p" "$HERE/manifest.txt"; }

# The torch folder of a Python, and its version; does not import it, which takes seconds.
torch_of() {
  "$1" - <<'END' 2>/dev/null
import importlib.util
import pathlib
import re
folder = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])
print(folder, re.search(r"^__version__ = '(.*)'", (folder / "version.py").read_text(), re.M).group(1))
END
}

# From a checkout: unpacks, and goes on with the script that was packed.
run_packed() {
  local archive=$HERE/build/gpu_check.tar.gz folder=$HERE/build/gpu_check
  [[ -f $archive ]] ||
    fail "there is no $archive; run scripts/gpu_check.sh pack where Elixir is built, and bring it along"
  rm -rf "$folder"
  mkdir -p "$folder" && tar -C "$folder" -xzf "$archive" || fail "cannot unpack $archive into $folder"
  if [[ -z ${PYTHON:-} ]] && ! torch_of python3 >/dev/null && [[ -x $HERE/.venv/bin/python ]]; then
    export PYTHON=$HERE/.venv/bin/python
  fi
  exec "$folder/scripts/gpu_check.sh" run "$CALL" "$RESULTS" "${options[@]}"
}

# The same torch, wherever it lies: its major and minor version decide whether programs fit.
find_torch() {
  export PYTHON=${PYTHON:-python3}
  local needed found
  needed=$(packed_with torch)
  found=$(torch_of "$PYTHON") || fail "$PYTHON has no torch, and the programs need torch $needed;
put a python3 that has it first on the PATH, or name one: PYTHON=/path/to/python3 $0 ..."
  TORCH=${found% *}
  [[ ${found##* } =~ ^([0-9]+\.[0-9]+)\. ]]
  [[ -n ${BASH_REMATCH[1]:-} && $needed == "${BASH_REMATCH[1]}".* ]] ||
    fail "$PYTHON has torch ${found##* } ($TORCH), and the programs were built with $needed;
name a python3 with torch ${needed%.*}: PYTHON=/path/to/python3 $0 ..., or build with that torch and pack again"
}

# Programs name no folder: libraries are those of the packed file, then torch's and CUDA's beside it.
find_libraries() {
  local name folder path=$HERE/lib:$TORCH/lib
  for name in libcudart.so.13 libnccl.so.2; do
    for folder in "$TORCH"/../nvidia/*/lib "$TORCH/lib"; do
      [[ -e $folder/$name ]] && path+=:$(realpath "$folder") && break
    done
  done
  export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local needed found said
  needed=$(packed_with glibc) found=$("$PYTHON" -c 'import os; print(os.confstr("CS_GNU_LIBC_VERSION"))')
  [[ $(printf '%s\n' "$needed" "${found#glibc }" | sort -V | head -n 1) == "$needed" ]] ||
    fail "the programs need glibc $needed and this machine has '$found'; build on an older system and pack again"
  said=$("$HERE/bin/train_gpt2" --version 2>&1) ||
    fail "train_gpt2 does not start with LD_LIBRARY_PATH=$LD_LIBRARY_PATH: $said"
}

# Folders of the call's own: no elixird and no probe of somebody else's.
prepare() {
  mkdir -p "$RESULTS" || refuse "cannot write to '$RESULTS'"
  if [[ -n $(ls -A "$RESULTS") && ! -f $RESULTS/call.txt ]]; then
    refuse "'$RESULTS' holds other files: name a new folder"
  fi
  WORK=$(mktemp -d /tmp/gpu_check-XXXXXX)
  mkdir -m 700 "$WORK/run"
  export RESULTS WORK ELIXIR_RUNTIME_DIR=$WORK/run ELIXIR_MACHINE_FILE=$WORK/machine.json
  export ELIXIR_BIN_DIR=$HERE/bin
  rm -f "$RESULTS"/*.json "$RESULTS"/*.jsonl
  for file in summary.txt output.log LastTest.log stages.tsv; do : >"$RESULTS/$file"; done
  printf '%s\n' "$CALL" "$(packed_with elixir)" "$(packed_with torch)" >"$RESULTS/call.txt"
}

failures=0

report() {  # report OUTCOME SECONDS [WHY]
  printf '%-7s %4d s  %s\n' "$1" "$2" "$name${3:+: $3}" | tee -a "$RESULTS/summary.txt"
  printf '%s\t' "$name" "$1" "$2" "$limit" "$command" >>"$RESULTS/stages.tsv"
  printf '%s\n' "${3:-}" >>"$RESULTS/stages.tsv"
  if [[ $1 == failed ]]; then failures=$((failures + 1)); fi
}

# The outcome of a stage that ended with `code` after `seconds`; its output is in $stage_log.
judge() {
  local code=$1 seconds=$2 allowed=$3
  case $code in
    0) report ok "$seconds" ;;
    77) report skipped "$seconds" "$(tail -n 1 "$stage_log")" ;;
    *)
      tail -n 40 "$stage_log" | sed 's/^/  | /'
      if ((code == 124 || code == 137)); then
        report failed "$seconds" "ran into its limit of $allowed s"
      else
        report failed "$seconds" "exit code $code"
      fi ;;
  esac
}

# Until `deadline`, in seconds of this shell: what earlier stages left of their limits counts.
run_stage() {
  local allowed=$((deadline - SECONDS)) began=$SECONDS code
  if ((allowed < 1)); then
    report skipped 0 "the time of call $CALL is used up"
    return
  fi
  STAGE=$name ALLOWED=$allowed timeout -k 5 "$allowed" bash -c "source '$PARTS/calls.sh'; $command" \
    >"$stage_log" 2>&1 </dev/null
  code=$?
  { echo "=== $name: $command"; cat "$stage_log"; } >>"$RESULTS/output.log"
  judge "$code" $((SECONDS - began)) "$allowed"
}

# summary.md and --keep's file, as far as the call has come: it may be cut off.
write_summary() {
  "$PYTHON" "$PARTS/summary.py" "$RESULTS" >"$RESULTS/summary.md" || echo "gpu_check: no summary.md" >&2
  [[ -n $KEEP ]] || return
  mkdir -p "$(dirname "$KEEP")" && tar -C "$RESULTS" -czf "$KEEP.part" . && mv "$KEEP.part" "$KEEP"
}

run_call() {
  local gpu=yes stage deadline=0 call name kind limit command
  has_gpu || gpu=no
  if [[ $gpu == no && $WITHOUT_GPU == no ]]; then
    echo "gpu_check: no GPU here (no /dev/nvidia0, no nvidia-smi, or CUDA_VISIBLE_DEVICES hides them)"
    exit 77
  fi
  [[ -f $HERE/manifest.txt ]] || run_packed
  find_torch
  find_libraries
  prepare
  stage_log=$WORK/stage.log
  trap 'rm -rf "$WORK"' EXIT
  cd "$HERE" || exit
  SECONDS=0
  for stage in "${STAGES[@]}"; do
    split_stage "$stage"
    [[ $call == "$CALL" && $name =~ $ONLY ]] || continue
    deadline=$((deadline + limit))
    if [[ $gpu == no && $kind == gpu ]]; then
      report skipped 0 "no GPU"
    else
      run_stage
    fi
    write_summary
  done
  echo "gpu_check: $RESULTS/summary.md"
  exit $((failures > 0))
}
