#!/usr/bin/env python3
"""Which rung of the ladder each test stands on, by the table in docs/design/tests.md.

    scripts/test_rungs.py NAME...      the rung of each test of ctest
    scripts/test_rungs.py --log FILE   of what ctest printed: the sum of seconds for each rung
"""

import argparse
import fnmatch
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
PAGE = os.path.join(ROOT, 'docs', 'design', 'tests.md')
RAN = re.compile(r'^ *\d+/\d+ Test +#\d+: (\S+) \.*.* ([\d.]+) sec', re.M)
ROW = re.compile(r'^\| ([1-5]) \| (`[^|]*`) \|', re.M)


def patterns(text=None):
    """(pattern, rung) in the order of the table; the first that matches decides."""
    if text is None:
        with open(PAGE, encoding='utf-8') as file:
            text = file.read()
    return [(pattern, int(rung)) for rung, cell in ROW.findall(text) for pattern in re.findall(r'`([^`]+)`', cell)]


def rung_of(name, rules):
    """0: the table has no row for it."""
    return next((rung for pattern, rung in rules if fnmatch.fnmatchcase(name, pattern)), 0)


def seconds_by_rung(log, rules):
    """Of what ctest printed."""
    sums = {}
    for name, seconds in RAN.findall(log):
        rung = rung_of(name, rules)
        sums[rung] = sums.get(rung, 0) + float(seconds)
    return sums


def read_log(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--log', metavar='FILE', help='sum up the seconds of what ctest printed')
    parser.add_argument('names', nargs='*', metavar='NAME')
    options = parser.parse_args()
    rules = patterns()
    if options.log:
        for rung, seconds in sorted(seconds_by_rung(read_log(options.log), rules).items()):
            print(f'{seconds:8.1f} s  {f"rung {rung}" if rung else "tests without a rung"}')
    for name in options.names:
        print(f'{name}: {rung_of(name, rules)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
