#!/usr/bin/env bash
# Installs who else must be able to read a checkpoint, for tests/e2e/foreign_test.py: transformers and
# safetensors; and whose operators must run on parameters, for tests/client/foreign_libraries_test.py:
# bitsandbytes and torchvision; and who trains through `import elixir`, for tests/python: accelerate, PEFT and
# TRL; with mypy, which judges the package's types, and scikit-build-core, with which pip builds it. They go into
# a Python environment of their own, build/foreign_venv. torch is not installed again: the environment sees
# .venv's. Half a minute and 900 MB; what needs a hub or a terminal is left out.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/foreign_setup.sh            install what is missing
#   scripts/foreign_setup.sh --check    install nothing; list what is missing, exit 1 if anything is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=build/foreign_venv
source scripts/python_packages.sh
PACKAGES=("${LIBRARIES[@]}" torchvision==0.26.0)  # that of torch 2.11
WHAT_TESTS_IMPORT='
import accelerate, datasets, matplotlib.pyplot, peft, rich.live, safetensors.torch, torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, Trainer
from transformers import Gemma3ForCausalLM, LlamaForCausalLM, MixtralForCausalLM, Qwen3ForCausalLM
from trl import SFTTrainer
'
source scripts/torch_venv.sh

# Made for exactly these.
packages_installed() { [[ "$(cat $VENV/installed 2>/dev/null)" == "${PACKAGES[*]}" ]]; }

missing() {
  missing_torch
  packages_installed || echo "${PACKAGES[0]} and ${PACKAGES[1]} in $VENV"
}

install_packages() {
  say "installing ${PACKAGES[0]} and ${PACKAGES[1]} into $VENV (ten seconds; 170 MB)"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    "${PACKAGES[@]}" >&2 ||
    fail "pip could not install ${PACKAGES[0]}: it needs a network and 200 MB of free disk ($(free_disk) are free here).
Then run scripts/foreign_setup.sh again"
  # Compiles what tests import, once and for all processes: an import of Trainer takes 5 s of a core in place of 8.
  env -u PYTHONDONTWRITEBYTECODE "$VENV/bin/python" -c "$WHAT_TESTS_IMPORT" >&2 ||
    fail "transformers, peft or trl cannot be imported. rm -r $VENV, then run scripts/foreign_setup.sh again"
  echo "${PACKAGES[*]}" >$VENV/installed
}

begin "$@"
packages_installed || install_packages
say "done"
