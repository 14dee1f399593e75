#!/usr/bin/env bash
# Installs the newest torch that Elixir is built for, whole, and the packages that train with it and whose operators
# must run on its parameters. tests/client/foreign_libraries_test.py and tests/python of
# `scripts/build.sh --torch newest` run in it. Into build/newest_venv: 6 GB, three minutes. Nightly tests run it.
# Installs only what is missing; when nothing is, it ends at once and prints nothing.
#
#   scripts/newest_setup.sh            install what is missing
#   scripts/newest_setup.sh --check    install nothing; exit 1 if anything is missing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=build/newest_venv
NEWEST_TORCH=$(sed -n 's/^NEWEST_TORCH=\([0-9.]*\).*/\1/p' scripts/setup.sh)
source scripts/python_packages.sh
TORCH=("torch==$NEWEST_TORCH" torchvision==0.29.2)
PACKAGES=("${TORCH[@]}" "${LIBRARIES[@]}")

fail() { echo "newest_setup: $*" >&2; exit 1; }
is_installed() { [[ "$(cat $VENV/installed 2>/dev/null)" == "${PACKAGES[*]}" ]]; }

case "${1:-}" in
  "") ;;
  --check) is_installed || { echo "missing: ${TORCH[*]} or packages beside it in $VENV"; exit 1; }; exit 0 ;;
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) fail "unknown argument '$1'; scripts/newest_setup.sh --help" ;;
esac
is_installed && exit 0
echo "newest_setup: installing ${TORCH[*]} and ${#LIBRARIES[@]} packages into $VENV (6 GB, three minutes)" >&2
scripts/setup.sh
.venv/bin/python -m venv --clear "$VENV" >&2
install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
{ install "${TORCH[@]}" && install --no-deps "${LIBRARIES[@]}"; } ||
  fail "pip could not install them: it needs a network and 10 GB of free disk ($(
    df -h --output=avail . | tail -1 | tr -d ' ') are free here)"
echo "${PACKAGES[*]}" >"$VENV/installed"
