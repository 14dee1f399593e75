#!/usr/bin/env bash
# Where the minutes of the last scripts/test.sh went: building and testing each preset, the objects
# that took longest to compile (ccache's hits are short) and the longest tests; building and running
# the fuzzing targets.
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

longest_tests() {
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*.* ([0-9.]+) sec.*/\2 \1/p' "$1" |
    sort -rn | head -n "$rows" | awk '{printf "%8.1f s  %s\n", $1, $2}'
}

all=0
for preset in release asan tsan; do
  folder=build/$preset
  [[ -f $folder/seconds.txt && -f $folder/ctest.log ]] || continue
  read -r build test <"$folder/seconds.txt"
  all=$((all + build + test))
  echo "$preset: build $(minutes "$build") min, tests $(minutes "$test") min"
  longest_objects "$folder/.ninja_log"
  longest_tests "$folder/ctest.log"
done
if [[ -f build/fuzz/seconds.txt ]]; then
  read -r build run <build/fuzz/seconds.txt
  all=$((all + build + run))
  echo "fuzz: build $(minutes "$build") min, targets $(minutes "$run") min"
fi
if ((all == 0)); then
  echo "ci_minutes: nothing is built and tested here yet; run scripts/test.sh" >&2
  exit 1
fi
echo "all: $(minutes "$all") min"
