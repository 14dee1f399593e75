#!/usr/bin/env python3
"""The tests that a change can break soonest, in five minutes on a warm build: those of the rooms that it
touches, then those of the rooms that include them, the short ones first.

    scripts/quick_tests.py                 for what differs from HEAD, and what git does not know yet
    scripts/quick_tests.py --since REV     for what differs from REV
    scripts/quick_tests.py --minutes M     as many tests as take M minutes (default: 5)

Prints the names of ctest, one per line, and on standard error what is left out. scripts/test.sh --quick
builds and runs them. Durations are those of earlier runs of ctest in build/release.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import figures

ROOT = figures.ROOT
BUILD = os.path.join(ROOT, 'build', 'release')
JOBS = 2
UNKNOWN_S = 10  # of a test that has not run here yet
# For a changed file outside the product: the rooms under tests/ that look at it.
OUTSIDE = {'docs': ['docs', 'tidy'], 'scripts': ['scripts', 'tidy'], 'cmake': ['scripts'], 'bench': [],
           'examples': ['e2e'], 'systemd': ['systemd'], 'package': ['package']}


def changed_files(since):
    differ = subprocess.run(['git', 'diff', '--name-only', since], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.splitlines()
    new = subprocess.run(['git', 'ls-files', '-o', '--exclude-standard'], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.splitlines()
    return differ + new


def test_rooms_of(files, tree):
    """Rooms under tests/ -> how far from the change: 0 for those of a changed file's room, 1 for those
    of the rooms that include it, and so on."""
    distance = {}
    including = collections.defaultdict(set)
    for room, included in figures.room_edges(tree).items():
        for name in included:
            including[name].add(room)
    product = {tree.room(path) for path in tree.product}
    front = set()
    for path in files:
        parts = path.split('/')
        if parts[0] == 'tests' and len(parts) > 2:
            distance[parts[1]] = 0
        elif parts[0] in OUTSIDE:
            distance.update((name, 0) for name in OUTSIDE[parts[0]])
        elif tree.room(path) in product:
            front.add(tree.room(path))
        else:  # README, CMakeLists.txt and their like
            distance.update((name, 0) for name in ('docs', 'tidy'))
    seen, far = set(front), 0
    while front:
        for room in front:
            distance.setdefault(room.split('/')[0], far)
        front = {room for near in front for room in including[near]} - seen
        seen |= front
        far += 1
    return distance


def room_of_test(test, graph):
    """The folder under tests/ whose list adds the test; another room's list may define the function."""
    node, room = test.get('backtrace'), ''
    while node is not None:
        entry = graph['nodes'][node]
        match = re.search(r'/tests/(\w+)/CMakeLists\.txt$', graph['files'][entry['file']])
        if match:
            room = match.group(1)
        node = entry.get('parent')
    return room


DEFAULT_RUN = ('-LE', '^(timing|nightly)$')  # as scripts/test.sh has it


def shown_by_ctest(build, *choice):
    """The entries of a build folder as ctest describes them, all or those of a choice (-L, -R). The list is
    read from a folder of its own: ctest writes a log even then, over that of a run in the build folder."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'CTestTestfile.cmake'), 'w', encoding='utf-8') as file:
            file.write(f'subdirs("{os.path.join(ROOT, build)}")\n')
        return json.loads(subprocess.run(['ctest', '--test-dir', folder, '--show-only=json-v1', *choice], cwd=ROOT,
                                         check=True, capture_output=True, text=True).stdout)


def properties_of(entry):
    return {row['name']: row['value'] for row in entry.get('properties', [])}


def listed_tests():
    """(name, room) of all that a default run has."""
    shown = shown_by_ctest(BUILD, *DEFAULT_RUN)
    return [(test['name'], room_of_test(test, shown['backtraceGraph'])) for test in shown['tests']]


def seconds_of_tests():
    path = os.path.join(BUILD, 'Testing', 'Temporary', 'CTestCostData.txt')
    found = {}
    if os.path.isfile(path):
        with open(path, encoding='utf-8') as file:
            for line in file:
                words = line.split()
                if len(words) == 3:
                    found[words[0]] = float(words[2])
    return found


def choose(tests, distance, seconds, budget_s):
    """(chosen, left out): nearest first, then the shortest; all that fit into the time of JOBS tests."""
    near = sorted((distance[room], seconds.get(name, UNKNOWN_S), name) for name, room in tests
                  if room in distance)
    chosen, left, taken = [], [], 0.0
    for _, took, name in near:
        if taken + took <= budget_s * JOBS:
            taken += took
            chosen.append(name)
        else:
            left.append(name)
    return chosen, left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--since', default='HEAD', help='the revision to compare with (HEAD)')
    parser.add_argument('--minutes', type=float, default=5, help='time for the tests (5)')
    options = parser.parse_args()
    files = changed_files(options.since)
    if not files:
        print(f'quick: nothing differs from {options.since}; --since REV compares with another revision',
              file=sys.stderr)
        return 1
    distance = test_rooms_of(files, figures.Tree())
    chosen, left = choose(listed_tests(), distance, seconds_of_tests(), 60 * options.minutes)
    rooms = ', '.join(sorted(distance, key=lambda room: (distance[room], room)))
    print(f'quick: {len(files)} changed files; rooms of tests, nearest first: {rooms}', file=sys.stderr)
    if left:
        print(f'quick: left out for time: {", ".join(left)}', file=sys.stderr)
    print('\n'.join(chosen))
    return 0


if __name__ == '__main__':
    sys.exit(main())
