"""A tutorial: commands in ```sh blocks, each with the output that the reader sees in the ```text block after it.

    <!-- interrupt: step 40/ -->      optional: Ctrl-C is pressed once the output has this text
    ```sh
    build/release/bin/elixir-train ...
    ```

    <!-- output -->
    ```text
    step 1/… loss …
    …
    ```

A line of a block that begins with `export` holds for the blocks after it, too, as in the reader's terminal.

In an output `…` stands for any text within its line. A line `…` alone stands for any lines, also none.
A block is one bash script, which ends at the first command that fails.
"""

import re
from dataclasses import dataclass

ANYTHING = '…'

BLOCK = re.compile(r'(?:^<!-- interrupt: (?P<interrupt>.+?) -->\n)?'
                   r'^```sh\n(?P<script>.*?)^```\n'
                   r'(?:\n*^<!-- output -->\n```text\n(?P<output>.*?)^```$)?', re.M | re.S)
MARK = re.compile(r'^<!-- (?:output|interrupt)\b', re.M)


class PageError(Exception):
    """The page is no tutorial: a mark stands at no block."""


@dataclass
class Step:
    """One block of commands."""

    line: int  # of the page, of its ```sh
    script: str
    output: list[str] | None  # None: the page shows none
    interrupt: str | None


def steps_of(text):
    """The blocks of a page, in their order."""
    steps, marks, exports = [], 0, ''
    for found in BLOCK.finditer(text):
        output, interrupt = found['output'], found['interrupt']
        marks += (output is not None) + (interrupt is not None)
        line = text.count('\n', 0, found.start('script'))
        script = exports + found['script']
        exports += ''.join(re.findall(r'^export .*\n', found['script'], re.M))
        steps.append(Step(line, script, None if output is None else output.splitlines(), interrupt))
    if marks != len(MARK.findall(text)):
        raise PageError(f'{len(MARK.findall(text))} marks, of which {marks} stand at a block')
    return steps


def line_fits(expected, actual):
    pieces = [re.escape(piece) for piece in expected.rstrip().split(ANYTHING)]
    return re.fullmatch('.*'.join(pieces), actual.rstrip()) is not None


def runs_of(expected):
    """The lines between lines of ANYTHING alone."""
    runs = [[]]
    for line in expected:
        if line.strip() == ANYTHING:
            runs.append([])
        else:
            runs[-1].append(line)
    return runs


def difference(run, actual, begin):
    """'' if `run` stands in `actual` from `begin` on; else the first line that does not."""
    for i, line in enumerate(run):
        there = actual[begin + i] if begin + i < len(actual) else None
        if there is None or not line_fits(line, there):
            return f'the page has\n    {line}\nand the output ' + (
                'ends before it' if there is None else f'has\n    {there}')
    return ''


def fault_of(expected, actual):
    """'' if the output is what the page shows; else where they differ."""
    runs = runs_of(expected)
    at, last = 0, len(runs) - 1
    for number, run in enumerate(runs):
        if number == 0:
            places = [0]
        elif number == last:
            places = [max(at, len(actual) - len(run))]
        else:
            places = range(at, max(at, len(actual) - len(run)) + 1)
        faults = [difference(run, actual, place) for place in places]
        if '' not in faults:
            return faults[0] if number == 0 else faults[-1]
        at = places[faults.index('')] + len(run)
    if at < len(actual):
        return f'the page has no line for\n    {actual[at]}'
    return ''
