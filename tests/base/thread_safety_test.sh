#!/usr/bin/env bash
# clang refuses what reads a guarded member without its mutex (base/mutex.h), and nothing else.
# Skipped, with code 77, where there is no clang++.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v clang++ >/dev/null || { echo "skipped: there is no clang++; scripts/setup.sh installs it"; exit 77; }

checked() {
  clang++ -std=c++20 -fsyntax-only -Wthread-safety -Werror=thread-safety -I. "$@" tests/base/guarded_counter.cpp
}

checked || { echo "thread_safety: right code is refused" >&2; exit 1; }
for wrong in READS_WITHOUT_LOCK WRITES_AFTER_UNLOCK CALLS_WITHOUT_LOCK READS_IN_A_PREDICATE; do
  if said=$(checked "-D$wrong" 2>&1); then
    echo "thread_safety: $wrong compiles" >&2
    exit 1
  fi
  [[ $said == *"-Wthread-safety"* ]] || { echo "thread_safety: $wrong is refused for something else: $said" >&2; exit 1; }
done
echo "thread_safety: refused as it should be"
