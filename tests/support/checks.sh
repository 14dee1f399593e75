# shellcheck shell=bash
# What tests in bash begin with: `source` it, say what holds, and end with `exit $((failures > 0))`.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
failures=0

check() {  # check WHAT CONDITION...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failures=$((failures + 1)); fi
}
contains() { [[ $1 == *"$2"* ]]; }
matches() { grep -qE -- "$2" <<<"$1"; }
