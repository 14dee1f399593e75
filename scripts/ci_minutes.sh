#!/usr/bin/env bash
# Shows where the minutes of the last scripts/test.sh went: each step, the objects that took longest to
# compile (ccache's hits are short), the longest tests, and the seconds of the release tests per rung of
# docs/design/tests.md.
#
#   scripts/ci_minutes.sh [ROWS]     the ROWS longest of each (default: 8)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rows=${1:-8}
if [[ ! $rows =~ ^[0-9]+$ ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  [[ $rows == -h || $rows == --help ]] && exit 0
  exit 2
fi

minutes() { awk -v s="$1" 'BEGIN {printf "%.1f", s / 60}'; }

# Lines of .ninja_log are: begin, end in ms since that ninja's start, mtime, output, hash.
longest_objects() {
  awk -F '\t' 'NR > 1 && $4 ~ /\.o$|\.gch$/ {if ($2 - $1 > ms[$4]) ms[$4] = $2 - $1}
               END {for (o in ms) printf "%8.1f s  %s\n", ms[o] / 1000, o}' "$1" |
    sed -E 's/CMakeFiles\/([^/]*)\.dir\//\1: /' | sort -rn | head -n "$rows"
}

# "SECONDS NAME" of each test of a ctest.log.
seconds_of_tests() {
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*.* ([0-9.]+) sec.*/\2 \1/p' "$1"
}

all=0
for step in setup foreign_setup release.{build,tests} newest_torch.{build,tests} tidy asan.{build,tests} fuzz tsan.{build,tests}; do
  [[ -f build/$step.seconds ]] || continue
  took=$(<"build/$step.seconds")
  all=$((all + took))
  echo "$step: $(minutes "$took") min"
  preset=${step%.*}
  [[ $preset != newest_torch ]] || preset=$(basename "$(compgen -G 'build/release-torch2*' | sort -V | tail -n 1)")
  case $step in
    *.build) [[ ! -f build/$preset/.ninja_log ]] || longest_objects "build/$preset/.ninja_log" ;;
    *.tests) [[ ! -f build/$preset/ctest.log ]] || seconds_of_tests "build/$preset/ctest.log" |
               sort -rn | head -n "$rows" | awk '{printf "%8.1f s  %s\n", $1, $2}' ;;
  esac
done
if ((all == 0)); then
  echo "ci_minutes: nothing is built and tested here yet; run scripts/test.sh" >&2
  exit 1
fi
if [[ -f build/release/ctest.log ]]; then
  echo "release tests per rung:"
  scripts/test_rungs.py --log build/release/ctest.log
fi
echo "all: $(minutes "$all") min"
