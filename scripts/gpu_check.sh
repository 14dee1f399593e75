#!/usr/bin/env bash
# Checks and measures on a GPU what was built elsewhere: stripped programs travel, nothing of Elixir is
# compiled there. That machine needs a python3 with the torch that Elixir was built with.
#
#   scripts/gpu_check.sh pack [FILE]          here: builds, and packs what the calls need
#                                             (default: build/gpu_check.tar.gz)
#   scripts/gpu_check.sh wheels               here, before pack: DeepSpeed for call 3
#   scripts/gpu_check.sh run CALL [RESULTS]   there: call 1 to 5, each under nine minutes
#                                             (default: build/gpu_check_results/CALL)
#   scripts/gpu_check.sh --dry-run [CALL]     what is packed and what is run, with limits
#
#   --build FOLDER   with pack: what lies in this build folder (default: build/release, built before)
#   --tiny           with run: the smallest sizes, to see that everything starts
#   --only REGEX     with run: the stages whose names match
#   --without-gpu    with run: what needs no GPU where there is none
#   --keep FILE      with run: RESULTS as one .tar.gz, too, written anew after each stage
#   --stages FILE    these stages instead, one a line as in scripts/gpu_check/calls.sh
#
# RESULTS/summary.md has machine, commands and figures as bench/RESULTS.md wants them; summary.txt a line
# a stage (ok, failed or skipped, seconds); NAME.json a stage's figures; LastTest.log what the tests
# printed, output.log what every stage did. A stage that fails, or runs into its limit, stops none after
# it. Run from a checkout, FILE (build/gpu_check.tar.gz) is unpacked into build/gpu_check first.
# Exit: 0 no stage failed; 1 one did, or nothing could start; 2 the command line; 77 there is no GPU.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit
PARTS=$HERE/scripts/gpu_check
export HERE

refuse() { echo "gpu_check: $*; scripts/gpu_check.sh --help" >&2; exit 2; }
fail() { echo "gpu_check: $*" >&2; exit 1; }

words=() options=()  # options: those of run, handed on to the script in the unpacked file
DRY_RUN=no TINY=no ONLY='' WITHOUT_GPU=no KEEP='' STAGES_FILE='' BUILD=''
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,26s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --dry-run) DRY_RUN=yes ;;
    --tiny) TINY=yes options+=("$1") ;;
    --without-gpu) WITHOUT_GPU=yes options+=("$1") ;;
    --build | --only | --keep | --stages)
      [[ $# -gt 1 ]] || refuse "$1 needs a value"
      value=$2
      [[ $1 == --only ]] || value=$(realpath -m "$2")
      case "$1" in
        --build) BUILD=$value ;;
        --only) ONLY=$value ;;
        --keep) KEEP=$value ;;
        --stages) STAGES_FILE=$value ;;
      esac
      [[ $1 == --build ]] || options+=("$1" "$value")
      shift ;;
    -*) refuse "unknown option '$1'" ;;
    *) words+=("$1") ;;
  esac
  shift
done
command=${words[0]:-}
argument=${words[1]:-}
[[ $command != run && ${#words[@]} -gt 2 || ${#words[@]} -gt 3 ]] && refuse "too many words: ${words[*]}"
export TINY

# shellcheck source=scripts/gpu_check/calls.sh
source "$PARTS/calls.sh"
if [[ -n $STAGES_FILE ]]; then mapfile -t STAGES <"$STAGES_FILE" || refuse "no stages in $STAGES_FILE"; fi

if [[ $DRY_RUN == yes ]]; then
  source "$PARTS/pack.sh"
  say_contents
  say_calls "$command"
  exit
fi
case "$command" in
  pack)
    source "$PARTS/pack.sh"
    pack "$(realpath -m "${argument:-$HERE/build/gpu_check.tar.gz}")" ;;
  wheels)
    source "$PARTS/pack.sh"
    collect_wheels ;;
  run)
    [[ $argument =~ ^[1-5]$ ]] || refuse "run needs the number of a call, 1 to 5, not '$argument'"
    CALL=$argument
    RESULTS=$(realpath -m "${words[2]:-$HERE/build/gpu_check_results/$CALL}")
    source "$PARTS/run.sh"
    run_call ;;
  '') refuse "say pack, wheels or run" ;;
  *) refuse "unknown word '$command'" ;;
esac
