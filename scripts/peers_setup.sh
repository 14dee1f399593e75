#!/usr/bin/env bash
# Installs what bench/peers.py compares Elixir with: DeepSpeed, in a Python environment of its own,
# build/peers_venv. torch is not installed again: the environment sees .venv's. What DeepSpeed
# compiles on first use is compiled here, so that no measured process does it.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/peers_setup.sh            install what is missing
#   scripts/peers_setup.sh --check    install nothing; list what is missing, exit 1 if anything is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DEEPSPEED_VERSION=0.19.8
VENV=build/peers_venv
source scripts/torch_venv.sh

deepspeed_installed() { installed $VENV "deepspeed-$DEEPSPEED_VERSION"; }
compiled() { [[ -e $VENV/compiled ]]; }

missing() {
  missing_torch
  deepspeed_installed || echo "DeepSpeed $DEEPSPEED_VERSION in $VENV"
  compiled || echo "DeepSpeed's compiled CPU Adam in $VENV"
}

install_deepspeed() {
  say "installing DeepSpeed $DEEPSPEED_VERSION into $VENV (a minute; 150 MB)"
  local pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
  # Built without isolation: a build environment of its own would download torch once more.
  "${pip[@]}" wheel setuptools ninja numpy >&2 &&
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation \
      "deepspeed==$DEEPSPEED_VERSION" "torch==$TORCH_VERSION" >&2 ||
    fail "pip could not install deepspeed==$DEEPSPEED_VERSION: it needs a network and 1 GB of free disk ($(free_disk) are
free here). Then run scripts/peers_setup.sh again"
}

compile() {
  say "compiling DeepSpeed's CPU Adam (a minute)"
  local log=$VENV/compile.log
  DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/$VENV/extensions PATH="$PWD/$VENV/bin:$PATH" \
    "$VENV/bin/python" - >$log 2>&1 <<'PYTHON' ||
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam

parameter = torch.nn.Parameter(torch.ones(1024))
parameter.grad = torch.ones(1024)
DeepSpeedCPUAdam([parameter], lr=0.1).step()
assert abs(parameter.mean().item() - 0.9) < 1e-3, parameter
get_accelerator().create_op_builder('ShareMemCommBuilder').load()  # loaded by every rank on a CPU
PYTHON
    fail "DeepSpeed's CPU Adam does not compile: it needs g++ (apt-get install g++); $log ends with
$(tail -n 5 $log)"
  : >$VENV/compiled
}

begin "$@"
deepspeed_installed || install_deepspeed
compiled || compile
say "done"
