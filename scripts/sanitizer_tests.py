#!/usr/bin/env python3
"""The tests that a run of scripts/test.sh repeats under sanitizers: those of the rooms whose code differs
from a revision. Comments, words of messages and lists of sources are no code. Nightly parts (sanitizers,
fuzz) run all of them.

    scripts/sanitizer_tests.py PRESET REV    ctest's entries of build/PRESET (asan or tsan), each with the
                                             target that builds its program
    scripts/sanitizer_tests.py fuzz REV      targets of scripts/fuzz.sh

All are printed if git does not know the revision, or if what all tests share has changed.
"""

import os
import re
import subprocess
import sys

import figures
import quick_tests
import tidy

ROOT = figures.ROOT
SOURCES = ('.h', '.cpp', '.cu')
SHARED = ('cmake/', 'tests/support/')


def rooms_of(changed, tree):
    """Rooms under tests/ for changed files; None: all."""
    if changed is None:
        return None
    changed = [path for path in changed if path.endswith(SOURCES)]
    if any(path.startswith(SHARED) for path in changed):
        return None
    return {room for room, far in quick_tests.test_rooms_of(changed, tree).items() if far == 0}


def entries(preset, rooms):
    """(name, target) of a preset's entries of these rooms. An entry's program has its name; the target is
    empty for what has none."""
    build = os.path.join(ROOT, 'build', preset)
    if not os.path.isfile(os.path.join(build, 'build.ninja')):
        tidy.configure(preset)
    shown = quick_tests.shown_by_ctest(build, *quick_tests.DEFAULT_RUN)
    known = subprocess.run(['ninja', '-C', build, '-t', 'targets', 'all'], check=True, capture_output=True, text=True)
    targets = {line.split(':')[0] for line in known.stdout.splitlines()}
    return [(test['name'], test['name'] if test['name'] in targets else '') for test in shown['tests']
            if rooms is None or quick_tests.room_of_test(test, shown['backtraceGraph']) in rooms]


def rooms_of_target(path, tree):
    """Rooms of the product that a fuzz target includes by itself or by what it includes of tests/."""
    rooms, seen, open_ = set(), {path}, [path]
    while open_:
        source = open_.pop()
        for name in tree.includes[source]:
            if not name.startswith('tests/'):
                rooms.add(name.split('/')[0])
            elif name not in seen:
                seen.add(name)
                open_ += [name] + [body for body in [re.sub(r'\.h$', '.cpp', name)] if body in tree.text]
    return rooms - {'base'}


def known_targets():
    listed = subprocess.run(['scripts/fuzz.sh', '--list'], cwd=ROOT, check=True, capture_output=True, text=True)
    return listed.stdout.split()


def fuzz_targets(rooms, tree):
    return [name for name in known_targets()
            if rooms is None or 'fuzz' in rooms or rooms & rooms_of_target(f'tests/fuzz/fuzz_{name}.cpp', tree)]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ('asan', 'tsan', 'fuzz'):
        print(__doc__, file=sys.stderr)
        return 2
    what, revision = sys.argv[1:]
    tree = figures.Tree()
    rooms = rooms_of(tidy.changed_since(revision), tree)
    lines = fuzz_targets(rooms, tree) if what == 'fuzz' else [' '.join(entry) for entry in entries(what, rooms)]
    print('\n'.join(lines))
    return 0


if __name__ == '__main__':
    sys.exit(main())
