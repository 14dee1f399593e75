# shellcheck shell=bash
# For scripts that give others' programs a Python environment of their own, which sees .venv's torch. Sourced from
# the repository's root, with VENV, its folder below build/, and `missing`, a function: what is lacking, a line each.

TORCH_VERSION=2.11.0  # as scripts/setup.sh
SETUP=$(basename "$0" .sh)

say() { echo "$SETUP: $*" >&2; }
fail() { say "$*"; exit 1; }

# pip writes RECORD last: an installation that was cut short does not count.
installed() { compgen -G "$1/lib/python3*/site-packages/$2*.dist-info/RECORD" >/dev/null; }
torch_installed() { installed .venv "torch-$TORCH_VERSION"; }
missing_torch() { torch_installed || echo "torch $TORCH_VERSION in .venv (scripts/setup.sh)"; }

# What is free where packages are installed, for a message.
free_disk() { df -h --output=avail . | tail -1 | tr -d ' '; }

# begin ARGUMENT...: ends the script where it was asked for --help or --check, or nothing is missing. Else there is an
# environment that sees torch once it returns, and no other set-up of its name until the script ends.
begin() {
  case "${1:-}" in
    "" | --check) ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) fail "unknown argument '$1'; scripts/$SETUP.sh --help" ;;
  esac
  local lacks
  mapfile -t lacks < <(missing)
  if [[ ${1:-} == --check ]]; then
    [[ ${#lacks[@]} -eq 0 ]] || printf 'missing: %s\n' "${lacks[@]}"
    exit $((${#lacks[@]} > 0))
  fi
  [[ ${#lacks[@]} -gt 0 ]] || exit 0
  torch_installed || scripts/setup.sh
  # Of two set-ups at a time one works and the other waits, then finds nothing to do.
  mkdir -p build && : >>"build/$SETUP.lock" || fail "$(id -un) cannot write to $PWD; run this as its owner"
  exec 9>>"build/$SETUP.lock"
  flock 9
  make_venv
}

make_venv() {
  if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    .venv/bin/python -m venv --clear "$VENV" >&2 ||
      fail "python3 -m venv failed; apt-get install python3-venv, then run scripts/$SETUP.sh again"
  fi
  # A .pth file adds a folder to the end of the search path: imports and pip both find torch there.
  local own=("$VENV"/lib/python3*/site-packages) torch=(.venv/lib/python3*/site-packages)
  realpath "${torch[0]}" >"${own[0]}/torch_of_elixir.pth"
  "$VENV/bin/python" -c "import torch, sys; sys.exit(not torch.__version__.startswith('$TORCH_VERSION'))" \
    2>/dev/null || fail "$VENV does not see .venv's torch $TORCH_VERSION: another Python made it.
rm -r $VENV, then run scripts/$SETUP.sh again"
}
