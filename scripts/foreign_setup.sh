#!/usr/bin/env bash
# Installs who else must be able to read a checkpoint, for tests/e2e/foreign_test.py: transformers and
# safetensors, in a Python environment of their own, build/foreign_venv. torch is not installed again: the
# environment sees .venv's. Ten seconds and 170 MB; what needs a hub or a terminal is left out.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/foreign_setup.sh            install what is missing
#   scripts/foreign_setup.sh --check    install nothing; list what is missing, exit 1 if anything is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH_VERSION=2.11.0  # as scripts/setup.sh
VENV=build/foreign_venv
PACKAGES=(
  transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3 huggingface_hub==2.4.0 numpy==2.4.6
  packaging==26.4 pyyaml==6.0.4 regex==2026.11.19 tqdm==4.70.1 xxhash==4.1.0
  # imported by huggingface_hub
  anyio==4.16.0 click==8.5.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 idna==3.20 truststore==0.10.5
)

say() { echo "foreign_setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# pip writes RECORD last: an installation that was cut short does not count.
installed() { compgen -G "$1/lib/python3*/site-packages/$2*.dist-info/RECORD" >/dev/null; }
torch_installed() { installed .venv "torch-$TORCH_VERSION"; }
# Made for exactly these.
packages_installed() { [[ "$(cat $VENV/installed 2>/dev/null)" == "${PACKAGES[*]}" ]]; }

missing() {
  torch_installed || echo "torch $TORCH_VERSION in .venv (scripts/setup.sh)"
  packages_installed || echo "${PACKAGES[0]} and ${PACKAGES[1]} in $VENV"
}

make_venv() {
  [[ -x $VENV/bin/python ]] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
  .venv/bin/python -m venv --clear $VENV >&2 ||
    fail "python3 -m venv failed; apt-get install python3-venv, then run scripts/foreign_setup.sh again"
}

# A .pth file adds a folder to the end of the search path.
share_torch() {
  local own=($VENV/lib/python3*/site-packages) torch=(.venv/lib/python3*/site-packages)
  realpath "${torch[0]}" >"${own[0]}/torch_of_elixir.pth"
}

install_packages() {
  say "installing ${PACKAGES[0]} and ${PACKAGES[1]} into $VENV (ten seconds; 170 MB)"
  # All are named: nothing is left to resolve, and nothing else comes with them.
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    "${PACKAGES[@]}" >&2 ||
    fail "pip could not install ${PACKAGES[0]}: it needs a network and 200 MB of free disk ($(
      df -h --output=avail . | tail -1 | tr -d ' ') are free here). Then run scripts/foreign_setup.sh again"
  "$VENV/bin/python" -c "import torch, transformers, safetensors, sys
sys.exit(not torch.__version__.startswith('$TORCH_VERSION'))" >&2 ||
    fail "$VENV does not see .venv's torch $TORCH_VERSION, or transformers cannot be imported.
rm -r $VENV, then run scripts/foreign_setup.sh again"
  echo "${PACKAGES[*]}" >$VENV/installed
}

case "${1:-}" in
  "" | --check) ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) fail "unknown argument '$1'; scripts/foreign_setup.sh --help" ;;
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
mkdir -p build && : >>build/foreign_setup.lock || fail "$(id -un) cannot write to $PWD; run this as its owner"
exec 9>>build/foreign_setup.lock
flock 9
make_venv
share_torch
packages_installed || install_packages
say "done"
