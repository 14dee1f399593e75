#!/usr/bin/env python3
"""Markdown of at most 120 columns: names the lines that are longer, or wraps their paragraphs.

  scripts/markdown_width.py [--fix]

Rows of tables, fenced code, headings and what has no blank to break at stay as they are.
"""

import argparse
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH = 120
ITEM = re.compile(r'(\s*)([*-]|\d+\.) ')


def pages():
    listed = subprocess.run(['git', 'ls-files', '*.md'], cwd=ROOT, capture_output=True, text=True, check=True)
    return [os.path.join(ROOT, name) for name in listed.stdout.split()]


def paragraphs(text):
    """(lines, may be wrapped) of a page, one after the other; together they are the page."""
    block, fenced = [], False
    for line in text.split('\n'):
        fence = line.lstrip().startswith('```')
        plain = not fenced and not fence and line.strip() and not re.match(r'\s*[|#>]|<!--', line)
        if not plain or ITEM.match(line):
            if block:
                yield block, True
            block = []
        if plain:
            block.append(line)
        else:
            yield [line], False
        if fence:
            fenced = not fenced
    if block:
        yield block, True


def too_long(line):
    return len(line) > WIDTH and ' ' in line.strip()[:WIDTH]


def wrapped(lines):
    item = ITEM.match(lines[0])
    indent = ' ' * (item.end() if item else len(lines[0]) - len(lines[0].lstrip()))
    first = lines[0][:item.end()] if item else indent
    words = ' '.join([lines[0][len(first):], *(line.strip() for line in lines[1:])])
    return textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def fixed(text):
    out = []
    for lines, may_wrap in paragraphs(text):
        out += wrapped(lines) if may_wrap and any(map(too_long, lines)) else lines
    return '\n'.join(out)


def long_lines(text):
    """Numbers of the lines that a wrap would shorten."""
    number, found = 0, []
    for lines, may_wrap in paragraphs(text):
        for line in lines:
            number += 1
            if may_wrap and too_long(line):
                found.append(number)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--fix', action='store_true', help='wrap them')
    fix = parser.parse_args().fix
    failed = False
    for path in pages():
        with open(path, encoding='utf-8') as file:
            text = file.read()
        if fix and fixed(text) != text:
            with open(path, 'w', encoding='utf-8') as file:
                file.write(fixed(text))
        elif not fix:
            for number in long_lines(text):
                failed = True
                print(f'{os.path.relpath(path, ROOT)}:{number}: longer than {WIDTH} columns; '
                      'scripts/markdown_width.py --fix wraps it')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
