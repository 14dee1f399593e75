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

TORCH_VERSION=2.11.0  # as scripts/setup.sh
DEEPSPEED_VERSION=0.19.8
VENV=build/peers_venv

say() { echo "peers_setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# pip writes RECORD last: an installation that was cut short does not count.
installed() { compgen -G "$1/lib/python3*/site-packages/$2*.dist-info/RECORD" >/dev/null; }
torch_installed() { installed .venv "torch-$TORCH_VERSION"; }
deepspeed_installed() { installed $VENV "deepspeed-$DEEPSPEED_VERSION"; }
compiled() { [[ -e $VENV/compiled ]]; }

missing() {
  torch_installed || echo "torch $TORCH_VERSION in .venv (scripts/setup.sh)"
  deepspeed_installed || echo "DeepSpeed $DEEPSPEED_VERSION in $VENV"
  compiled || echo "DeepSpeed's compiled CPU Adam in $VENV"
}

make_venv() {
  [[ -x $VENV/bin/python ]] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
  .venv/bin/python -m venv --clear $VENV >&2 ||
    fail "python3 -m venv failed; apt-get install python3-venv, then run scripts/peers_setup.sh again"
}

# A .pth file adds a folder to the end of the search path: imports and pip both find torch there.
share_torch() {
  local own=($VENV/lib/python3*/site-packages) torch=(.venv/lib/python3*/site-packages)
  realpath "${torch[0]}" >"${own[0]}/torch_of_elixir.pth"
  "$VENV/bin/python" -c "import torch, sys; sys.exit(not torch.__version__.startswith('$TORCH_VERSION'))" \
    2>/dev/null || fail "$VENV does not see .venv's torch $TORCH_VERSION: another Python made it.
rm -r $VENV, then run scripts/peers_setup.sh again"
}

install_deepspeed() {
  say "installing DeepSpeed $DEEPSPEED_VERSION into $VENV (a minute; 150 MB)"
  local pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
  # Built without isolation: a build environment of its own would download torch once more.
  "${pip[@]}" wheel setuptools ninja numpy >&2 &&
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation \
      "deepspeed==$DEEPSPEED_VERSION" "torch==$TORCH_VERSION" >&2 ||
    fail "pip could not install deepspeed==$DEEPSPEED_VERSION: it needs a network and 1 GB of free disk ($(
      df -h --output=avail . | tail -1 | tr -d ' ') are free here). Then run scripts/peers_setup.sh again"
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

case "${1:-}" in
  "" | --check) ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) fail "unknown argument '$1'; scripts/peers_setup.sh --help" ;;
esac

mapfile -t lacks < <(missing)
if [[ ${1:-} == --check ]]; then
  for name in "${lacks[@]}"; do echo "missing: $name"; done
  [[ ${#lacks[@]} -eq 0 ]]
  exit
fi
[[ ${#lacks[@]} -eq 0 ]] && exit 0

torch_installed || scripts/setup.sh
# Of two set-ups at a time one works and the other waits, then finds nothing to do.
mkdir -p build && : >>build/peers_setup.lock || fail "$(id -un) cannot write to $PWD; run this as its owner"
exec 9>>build/peers_setup.lock
flock 9
make_venv
share_torch
deepspeed_installed || install_deepspeed
compiled || compile
say "done"
