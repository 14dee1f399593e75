"""What scripts that keep a table of a page have in common: marks around it, --write, --check; elixirctl, asked."""

import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
END = '<!-- end -->'
DOES_NOT_FIT = 3  # exit code of elixirctl


class Planner:
    """elixirctl of one build, asked about one model."""

    def __init__(self, folder, bin_folder, model):
        self.elixirctl = os.path.join(bin_folder, 'elixirctl')
        self.folder = folder
        self.model = model
        self.profiles = {}  # by batch

    def run(self, *words):
        return subprocess.run([self.elixirctl, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    def profile(self, batch):
        """The path of a profile of a step with so many sequences."""
        if batch not in self.profiles:
            path = os.path.join(self.folder, f'profile_{batch}.json')
            done = self.run('profile', *self.model, '--batch', str(batch), '--output', path)
            if done.returncode != 0:
                raise SystemExit(f'elixirctl profile {" ".join(self.model)} ended with '
                                 f'{done.returncode}: {done.stderr.strip()}')
            self.profiles[batch] = path
        return self.profiles[batch]

    def plan(self, *flags, batch=1):
        """(the plan or None, what was said)."""
        done = self.run('plan', '--profile', self.profile(batch), *flags, '--json')
        if done.returncode not in (0, DOES_NOT_FIT):
            raise SystemExit(f'elixirctl plan ended with {done.returncode}: {done.stderr.strip()}')
        return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr


def of_rows(heads, rows):
    return '\n'.join([f'| {" | ".join(heads)} |', f'|{"---|" * len(heads)}',
                      *(f'| {" | ".join(row)} |' for row in rows)]) + '\n'


def with_table(page, begin_mark, table):
    """The page with this table between the marks."""
    before, begin, rest = page.partition(begin_mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f'the page has no line {begin_mark.strip()} with a line {END} after it')
    return f'{before}{begin}{table}{end}{after}'


def main(script, begin_mark, page_name, make, arguments=None):
    """`script` is its docstring, `make(bin_folder)` gives the table."""
    parser = argparse.ArgumentParser(
        description=script.split('\n\n', maxsplit=1)[0], formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=script.split('\n\n', 1)[1])
    parser.add_argument('--write', action='store_true', help='write the table into the page')
    parser.add_argument('--check', action='store_true', help='exit 1 if the page has another table')
    parser.add_argument('--page', default=os.path.join(ROOT, page_name), help=f'default: {page_name}')
    parser.add_argument('--bin', default=os.path.join(ROOT, 'build', 'release', 'bin'), help='where elixirctl is')
    options = parser.parse_args(arguments)
    table = make(options.bin)
    if not options.write and not options.check:
        print(table, end='')
        return 0
    with open(options.page, encoding='utf-8') as file:
        page = file.read()
    new = with_table(page, begin_mark, table)
    if options.write and new != page:
        with open(options.page, 'w', encoding='utf-8') as file:
            file.write(new)
    if options.check and not options.write and new != page:
        print(f'{options.page} has an old table; run it with --write. The planner says:\n{table}', end='', file=sys.stderr)
        return 1
    return 0
