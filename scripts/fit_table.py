#!/usr/bin/env python3
"""README's table of models, GPUs and the host memory that each pair needs, from the planner.

  scripts/fit_table.py              prints the table
  scripts/fit_table.py --write      writes it into the page, between its two marks
  scripts/fit_table.py --check      exit 1 if the page has another table

A cell is the least host memory, in whole GiB, for which `elixirctl plan` finds a plan.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = '<!-- fit table: scripts/fit_table.py -->\n', '<!-- end -->'

# The name in the table, and where the planner has the model.
MODELS = (
    ('GPT-2 small', ['--model', 'gpt2-small']),
    ('Qwen 3 0.6B', ['--config', 'examples/configs/qwen-3-0.6b.json']),
    ('GPT-2 XL', ['--model', 'gpt2-xl']),
    ('Gemma 2 2B', ['--config', 'examples/configs/gemma-2-2b.json']),
    ('Qwen 2 7B', ['--config', 'examples/configs/qwen-2-7b.json']),
    ('Llama 3 8B', ['--config', 'examples/configs/llama-3-8b.json']),
    ('Llama 13B', ['--model', 'llama-13b']),
    ('Qwen 2.5 32B', ['--config', 'examples/configs/qwen-2.5-32b.json']),
    ('Llama 2 70B', ['--model', 'llama2-70b']),
)
GPUS_GIB = (24, 48, 80)
STEP = ['--batch', '1', '--seq', '1024', '--dtype', 'bf16']
# Its rates do not matter for what fits.
MACHINE = ['--machine', 'examples/machines/h100.json']

DOES_NOT_FIT = 3  # exit code of elixirctl
LITTLE_GIB = 1  # of host memory: only a model whose states all lie on the GPU fits
UNITS_GIB = {'B': 2**-30, 'KiB': 2**-20, 'MiB': 2**-10, 'GiB': 1, 'TiB': 2**10}
USABLE_SHARE = 0.95  # of host memory, as the planner counts it
LACKS_HOST = re.compile(r'the model states need ([\d.]+) ([KMGT]?i?B) in host memory')


class Planner:
    """elixirctl of one build, asked about one model."""

    def __init__(self, folder, bin_folder, model):
        self.elixirctl = os.path.join(bin_folder, 'elixirctl')
        self.profile = os.path.join(folder, 'profile.json')
        made = self.run('profile', *model, *STEP, '--output', self.profile)
        if made.returncode != 0:
            raise SystemExit(f'fit_table: elixirctl profile {" ".join(model)} ended with '
                             f'{made.returncode}: {made.stderr.strip()}')

    def run(self, *words):
        return subprocess.run([self.elixirctl, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    def plan(self, gpu_gib, host_gib):
        """(the plan or None, what was said)."""
        done = self.run('plan', '--profile', self.profile, *MACHINE, '--gpu-memory', f'{gpu_gib}GiB',
                        '--host-memory', f'{host_gib}GiB', '--json')
        if done.returncode not in (0, DOES_NOT_FIT):
            raise SystemExit(f'fit_table: elixirctl plan ended with {done.returncode}: {done.stderr.strip()}')
        return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr

    def params(self):
        with open(self.profile, encoding='utf-8') as file:
            return sum(parameter['numel'] for parameter in json.load(file)['params'])

    def cell(self, gpu_gib):
        """What the table says of this model on a GPU of this size."""
        plan, said = self.plan(gpu_gib, LITTLE_GIB)
        if plan is not None:
            return 'fits the GPU'
        lack = LACKS_HOST.search(said)
        if lack is None:
            return 'no'
        need_gib = float(lack.group(1)) * UNITS_GIB[lack.group(2)] / USABLE_SHARE
        first = math.ceil(need_gib)
        for host_gib in range(first, first + 3):  # the message is rounded
            if self.plan(gpu_gib, host_gib)[0] is not None:
                return f'{host_gib:,} GiB'
        raise SystemExit(f'fit_table: no plan with {first + 2} GiB of host memory, where need was {said.strip()}')


def people_count(params):
    return f'{params / 1e9:.1f} B' if params >= 1e9 else f'{params / 1e6:.0f} M'


def fit_table(bin_folder):
    heads = ['model', 'parameters', *(f'GPU of {gib} GiB' for gib in GPUS_GIB)]
    lines = [f'| {" | ".join(heads)} |', f'|{"---|" * len(heads)}']
    for name, model in MODELS:
        with tempfile.TemporaryDirectory(prefix='elixir-fit-') as folder:
            planner = Planner(folder, bin_folder, model)
            cells = [name, people_count(planner.params()), *map(planner.cell, GPUS_GIB)]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def with_table(page, table):
    """The page with this table between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f'fit_table: the page has no line {BEGIN.strip()} with a line {END} after it')
    return f'{before}{begin}{table}{end}{after}'


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n', maxsplit=1)[0], formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=__doc__.split('\n\n', 1)[1])
    parser.add_argument('--write', action='store_true', help='write the table into the page')
    parser.add_argument('--check', action='store_true', help='exit 1 if the page has another table')
    parser.add_argument('--page', default=os.path.join(ROOT, 'README.md'), help='default: README.md')
    parser.add_argument('--bin', default=os.path.join(ROOT, 'build', 'release', 'bin'), help='where elixirctl is')
    options = parser.parse_args(arguments)
    table = fit_table(options.bin)
    if not options.write and not options.check:
        print(table, end='')
        return 0
    with open(options.page, encoding='utf-8') as file:
        page = file.read()
    new = with_table(page, table)
    if options.write and new != page:
        with open(options.page, 'w', encoding='utf-8') as file:
            file.write(new)
    if options.check and not options.write and new != page:
        print(f'{options.page} has an old table; run scripts/fit_table.py --write. The planner says:\n{table}',
              end='', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
