#!/usr/bin/env bash
# Installs who else must be able to read a checkpoint, for tests/e2e/foreign_test.py: transformers and
# safetensors; and whose operators must run on parameters, for tests/client/foreign_libraries_test.py:
# bitsandbytes and torchvision; and who trains through `import elixir`, for tests/python: accelerate, PEFT and
# TRL. They go into a Python environment of their own, build/foreign_venv. torch is
# not installed again: the environment sees .venv's. Half a minute and 900 MB; what needs a hub or a
# terminal is left out.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/foreign_setup.sh            install what is missing
#   scripts/foreign_setup.sh --check    install nothing; list what is missing, exit 1 if anything is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=build/foreign_venv
PACKAGES=(
  transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3 huggingface_hub==2.4.0 numpy==2.4.6
  packaging==26.4 pyyaml==6.0.4 regex==2026.11.19 tqdm==4.70.1 xxhash==4.1.0
  # imported by huggingface_hub
  anyio==4.16.0 click==8.5.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 idna==3.20 truststore==0.10.5
  # whose operators run on parameters; this torchvision is of torch 2.11
  bitsandbytes==0.50.2 torchvision==0.26.0 pillow==13.0.0
  # who trains through `import elixir`, and what that draws and shows with
  accelerate==1.15.0 peft==0.21.2 trl==1.16.0 datasets==5.2.0 psutil==7.2.2 pandas==3.1.1 pyarrow==26.0.1
  dill==0.4.1 multiprocess==0.70.19 python-dateutil==4.0.0 rich==15.0.0 markdown-it-py==4.3.0 mdurl==0.1.2
  Pygments==2.21.0 matplotlib==3.11.2 contourpy==1.3.3 cycler==0.12.1 fonttools==4.68.0 kiwisolver==1.5.1
  pyparsing==3.3.3
)
source scripts/torch_venv.sh

# Made for exactly these.
packages_installed() { [[ "$(cat $VENV/installed 2>/dev/null)" == "${PACKAGES[*]}" ]]; }

missing() {
  missing_torch
  packages_installed || echo "${PACKAGES[0]} and ${PACKAGES[1]} in $VENV"
}

install_packages() {
  say "installing ${PACKAGES[0]} and ${PACKAGES[1]} into $VENV (ten seconds; 170 MB)"
  # All are named: nothing is left to resolve, and nothing else comes with them.
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    "${PACKAGES[@]}" >&2 ||
    fail "pip could not install ${PACKAGES[0]}: it needs a network and 200 MB of free disk ($(free_disk) are free here).
Then run scripts/foreign_setup.sh again"
  "$VENV/bin/python" -c "import torch, transformers, safetensors" >&2 ||
    fail "transformers cannot be imported. rm -r $VENV, then run scripts/foreign_setup.sh again"
  echo "${PACKAGES[*]}" >$VENV/installed
}

begin "$@"
packages_installed || install_packages
say "done"
