#!/usr/bin/env python3
"""What the tests that failed in a preset's last ctest printed, and nothing else: of a GoogleTest
program the tests in it that failed, of another program, or of one that died, its last lines.

    scripts/failed_tests.py PRESET [--lines N]

Prints nothing where all passed, or nothing was run. Exit code 0 in any case: ctest has one."""

import argparse
import pathlib
import re
import sys

BEGINS = re.compile(r"^\d+/\d+ Testing: (?P<name>\S+)\n", re.MULTILINE)
OUTPUT = re.compile(r"^Output:\n-+\n(?P<output>.*?)^<end of output>\n.*?^-+\n(?P<verdict>[^\n]*)",
                    re.MULTILINE | re.DOTALL)
FINE = ("Test Passed", "Test Skipped")
RUN, OK, SKIPPED, FAILED = (f"[{word}]" for word in (" RUN      ", "       OK ", "  SKIPPED ", "  FAILED  "))


def middle_left_out(lines, most):
    """At most `most` lines, the first and the last ones: what went wrong, and how it ended."""
    if len(lines) <= most:
        return lines
    head = most // 2
    return [*lines[:head], f"[{len(lines) - most} lines left out]", *lines[head - most:]]


def failed_blocks(output):
    """Of a GoogleTest program: the lines of each test that failed, and of the one that never ended."""
    block = []
    for line in output.splitlines():
        if line.startswith(RUN):
            block = [line]
        elif block:
            block.append(line)
            if line.startswith(FAILED):
                yield block
            if line.startswith((OK, SKIPPED, FAILED)):
                block = []
    if block:
        yield block


def name_of(block):
    """The test's."""
    return block[0].split()[3]


def is_failed(block):
    """It has ended, and failed; else it never ended."""
    return block[-1].startswith(FAILED)


def failures(log, most_lines):
    """Lines to print of ctest's LastTest.log."""
    begins = list(BEGINS.finditer(log))
    for found, end in zip(begins, [*(b.start() for b in begins[1:]), len(log)]):
        part = OUTPUT.search(log, found.end(), end)
        if part and part["verdict"].startswith(FINE):
            continue
        yield f"--- {found['name']}: {part['verdict'] if part else 'did not end'}"
        output = part["output"] if part else log[found.end():end]
        blocks = list(failed_blocks(output)) or [output.splitlines()[-most_lines:]]
        for block in blocks:
            yield from middle_left_out(block, most_lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--lines", type=int, default=60, help="at most of one failure (default: 60)")
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    log = root / "build" / arguments.preset / "Testing" / "Temporary" / "LastTest.log"
    if not log.exists():
        return 0
    for line in failures(log.read_text(encoding="utf-8", errors="replace"), arguments.lines):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
