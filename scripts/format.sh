#!/usr/bin/env bash
# Checks the C++ sources against .clang-format.
#
#   scripts/format.sh          lists what differs; exit 1 if anything does
#   scripts/format.sh --fix    formats it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sources() {
  if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh'
  else  # an unpacked archive
    find . \( -name build -o -name '.venv' \) -prune -o \
      \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0
  fi
}

case "${1:-}" in
  "") sources | xargs -0 -r clang-format --dry-run -Werror ;;
  --fix) sources | xargs -0 -r clang-format -i ;;
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" ;;
  *) echo "format: unknown argument '$1'; scripts/format.sh --help" >&2; exit 2 ;;
esac
