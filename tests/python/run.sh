#!/usr/bin/env bash
# run.sh VENV TEST: the test with the environment's Python; 77 where the environment is not there.
if [[ ! -x $1/bin/python ]]; then
  echo "skipped: $1 is not there; scripts/foreign_setup.sh makes it"
  exit 77
fi
exec "$1/bin/python" -B "${@:2}"
