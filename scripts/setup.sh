#!/usr/bin/env bash
# Installs what Elixir needs on Debian 12: Debian packages, LibTorch as PyTorch's wheel in .venv, and
# beside it, where no CUDA 13 is installed, CUDA's compiler.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/setup.sh                  install what is missing (root, or sudo)
#   scripts/setup.sh --torch VERSION  and another torch in build/torch-VERSION, for C++ alone (1.3 GB), for
#                                     scripts/build.sh --torch VERSION; `newest` stands for the newest
#                                     that Elixir is tested with
#   scripts/setup.sh --packages       the Debian packages alone, for a torch of your own (docs/python.md)
#   scripts/setup.sh --check          install nothing; list what is missing, exit 1 if anything is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH_VERSION=2.11.0
NEWEST_TORCH=2.15.0  # scripts/versions.py --newest says when there is a newer one
CUDA_VERSION=13.0.2  # that of the torch wheel
PACKAGES=(
  # to build
  g++ cmake ninja-build ccache pkg-config git python3-dev python3-venv clang clang-format clang-tidy
  # libraries
  libboost-dev libzmq3-dev cppzmq-dev libnuma-dev libfmt-dev libspdlog-dev libcli11-dev
  nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev libgloo-dev
  # to test: systemd for its verifier alone, iproute2 for two nodes on one machine, tmux for screens
  libgtest-dev libgmock-dev libbenchmark-dev systemd iproute2 tmux
  # the API reference
  doxygen
)

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

missing_packages() {
  local installed
  # dpkg-query fails when it has never heard of one of them, as on a fresh machine.
  installed=" $({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${PACKAGES[@]}" 2>/dev/null || true; } |
    sed -n 's/^installed //p' | tr '\n' ' ') "
  local package
  for package in "${PACKAGES[@]}"; do
    [[ $installed == *" $package "* ]] || echo "$package"
  done
}

# pip writes RECORD last: an installation that was cut short does not count.
installed() { compgen -G "$1/lib/python3*/site-packages/$2*.dist-info/RECORD" >/dev/null; }  # VENV WHEEL
torch_installed() { installed .venv "torch-$TORCH_VERSION"; }
other_installed() {
  [[ -z $other ]] && return
  local wheel
  for wheel in "torch-$other" nvidia_cuda_runtime nvidia_cuda_cupti; do
    installed "build/torch-$other" "$wheel" || return
  done
}

is_nvcc() { [[ -x $1 ]] && "$1" --version 2>/dev/null | grep -q "release ${CUDA_VERSION%%.*}\."; }

nvcc_installed() {
  is_nvcc "$(command -v "${CUDACXX:-nvcc}")" || is_nvcc /usr/local/cuda/bin/nvcc && return
  local wheel
  for wheel in nvidia_cuda_nvcc nvidia_nvvm nvidia_cuda_crt nvidia_cuda_cccl; do
    installed .venv "$wheel-${CUDA_VERSION%.*}." || return
  done
}

root=()  # what makes a command run as root

by_hand() { echo "  apt-get update && apt-get install --no-install-recommends -y $*"; }

require_root() {
  command -v apt-get >/dev/null ||
    fail "these Debian packages are missing and there is no apt-get: $*; Elixir is built on Debian 12"
  [[ $(id -u) -eq 0 ]] && return
  if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    root=(sudo)
    return
  fi
  fail "$# Debian packages are missing and this is neither root nor a user with sudo. As root, run:
$(by_hand "$@")"
}

install_packages() {
  say "installing $# Debian packages: $*"
  "${root[@]}" apt-get update -qq >&2 ||
    fail "apt-get update failed: is there a network? Then run scripts/setup.sh again"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "$@" >&2 ||
    fail "apt-get could not install the packages. By hand:
$(by_hand "$@")"
}

make_venv() {  # VENV
  [[ -x $1/bin/python ]] && "$1/bin/python" -m pip --version >/dev/null 2>&1 && return
  local python
  for python in python3 /usr/bin/python3; do
    say "making $1 with $python"
    "$python" -m venv --clear "$1" >&2 && return
  done
  fail "python3 -m venv failed; apt-get install python3-venv, then run scripts/setup.sh again"
}

install_torch() {
  say "installing torch $TORCH_VERSION into .venv (4.6 GB, about a minute)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" >&2 ||
    fail "pip could not install torch==$TORCH_VERSION: it needs a network and 10 GB of free disk ($(
      df -h --output=avail . | tail -1 | tr -d ' ') are free here). By hand:
  .venv/bin/python -m pip install torch==$TORCH_VERSION"
  torch_installed || fail "pip ended without an error but .venv has no torch $TORCH_VERSION; rm -r .venv and run scripts/setup.sh again"
}

# The wheel, and of the libraries that it names those that libtorch_cpu.so loads.
install_other() {
  local pip=("build/torch-$other/bin/python" -m pip install --quiet --disable-pip-version-check) cuda
  say "installing torch $other into build/torch-$other, for C++ alone (1.3 GB, about a minute)"
  "${pip[@]}" --no-deps "torch==$other" >&2 ||
    fail "pip could not install torch==$other: is there such a release, a network, and 4 GB of free disk ($(
      df -h --output=avail . | tail -1 | tr -d ' ') are free here)?"
  cuda=$("build/torch-$other/bin/python" -c '
import importlib.metadata, re
needs = " ".join(importlib.metadata.requires("torch"))
version = re.search(r"cuda-toolkit\[[^]]*\]==([0-9.]+)", needs)
names = re.findall(r"nvidia-cuda-(?:runtime|cupti)[a-z0-9-]*==[0-9.]+", needs)
print(f"cuda-toolkit[cudart,cupti]=={version[1]}" if version else " ".join(names))')
  local said  # pip complains of all that torch names and need not be here
  # shellcheck disable=SC2086  # names of packages, none has a blank
  said=$("${pip[@]}" $cuda 2>&1) || fail "pip could not install $cuda, which torch $other loads: is there a network?
$said"
  other_installed || fail "pip ended without an error but build/torch-$other has no torch $other, or not the CUDA libraries
that it loads ($cuda); rm -r build/torch-$other and run scripts/setup.sh --torch $other again"
}

# Without it all is built but what runs on GPUs, so a failure is no reason to stop.
install_nvcc() {
  local wheels="cuda-toolkit[nvcc,nvvm,crt,cccl]==$CUDA_VERSION"
  say "installing CUDA's compiler $CUDA_VERSION into .venv (270 MB)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$wheels" >&2 ||
    say "pip could not install CUDA's compiler: is there a network? Elixir is built for CPUs alone. By hand:
  .venv/bin/python -m pip install '$wheels'"
}

other=''  # the version that --torch names
check=''
packages_only=''
while [[ $# -gt 0 ]]; do
  case "$1" in
    --check) check=1 ;;
    --packages) packages_only=1 ;;
    --torch)
      other=${2:-}
      [[ $other != newest ]] || other=$NEWEST_TORCH
      [[ $other =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "--torch takes a release of torch, such as $NEWEST_TORCH, or newest"
      [[ $other != "$TORCH_VERSION" ]] || other=''  # in .venv
      shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) fail "unknown argument '$1'; scripts/setup.sh --help" ;;
  esac
  shift
done

mapfile -t missing < <(missing_packages)
if [[ -n $check ]]; then
  for name in "${missing[@]}"; do echo "missing: Debian package $name"; done
  torch_installed || echo "missing: torch $TORCH_VERSION in .venv"
  nvcc_installed || echo "missing: nvcc of CUDA ${CUDA_VERSION%%.*}"
  other_installed || echo "missing: torch $other in build/torch-$other"
  [[ ${#missing[@]} -eq 0 ]] && torch_installed && nvcc_installed && other_installed
  exit
fi
[[ ${#missing[@]} -eq 0 && -n $packages_only ]] && exit 0
[[ ${#missing[@]} -eq 0 ]] && torch_installed && nvcc_installed && other_installed && exit 0

if [[ ${#missing[@]} -gt 0 ]]; then require_root "${missing[@]}"; fi
# Of two set-ups at a time one works and the other waits, then finds nothing to do.
mkdir -p build && : >>build/setup.lock || fail "$(id -un) cannot write to $PWD; run this as its owner"
exec 9>>build/setup.lock
flock 9
mapfile -t missing < <(missing_packages)
[[ ${#missing[@]} -eq 0 ]] || install_packages "${missing[@]}"
[[ -z $packages_only ]] || exit 0
if ! torch_installed; then
  make_venv .venv
  install_torch
fi
nvcc_installed || install_nvcc
if ! other_installed; then
  make_venv "build/torch-$other"
  install_other
fi
say "done"
