#!/usr/bin/env python3
"""README's table of models, GPUs and the host memory that each pair needs, from the planner.

  scripts/fit_table.py              prints the table
  scripts/fit_table.py --write      writes it into the page, between its two marks
  scripts/fit_table.py --check      exit 1 if the page has another table

A cell has the least host memory, in whole GiB, for which `elixirctl plan` finds a plan for a step of one sequence. Then
come the tokens per second that it predicts with memory to spare.
"""

import json
import math
import re
import sys
import tempfile

import page_table

BEGIN = '<!-- fit table: scripts/fit_table.py -->\n'

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
GPUS = (('RTX 4090 (24 GiB)', 'desktop_rtx4090', 24), ('L40S (48 GiB)', 'l40s', 48), ('H100 (80 GiB)', 'h100', 80))
STEP = ['--seq', '1024', '--dtype', 'bf16']
FAST_BATCH, MUCH_MEMORY = 8, ['--host-memory', '4TiB']  # of the tokens per second

LITTLE_GIB = 1  # of host memory: only a model whose states all lie on the GPU fits
UNITS_GIB = {'B': 2**-30, 'KiB': 2**-20, 'MiB': 2**-10, 'GiB': 1, 'TiB': 2**10}
USABLE_SHARE = 0.95  # of host memory, as the planner counts it
LACKS_HOST = re.compile(r'the model states need ([\d.]+) ([KMGT]?i?B) in host memory')
FITS, DOES_NOT_FIT = 'fits the GPU', 'no'


def params(planner):
    with open(planner.profile(1), encoding='utf-8') as file:
        return sum(parameter['numel'] for parameter in json.load(file)['params'])


def machine_flags(machine, gpu_gib):
    return ['--machine', f'examples/machines/{machine}.json', '--gpu-memory', f'{gpu_gib}GiB']


def need(planner, flags):
    """The host memory that this model needs."""
    plan, said = planner.plan(*flags, '--host-memory', f'{LITTLE_GIB}GiB')
    if plan is not None:
        return FITS
    lack = LACKS_HOST.search(said)
    if lack is None:
        return DOES_NOT_FIT
    first = math.ceil(float(lack.group(1)) * UNITS_GIB[lack.group(2)] / USABLE_SHARE)
    for host_gib in range(first, first + 3):  # the message is rounded
        if planner.plan(*flags, '--host-memory', f'{host_gib}GiB')[0] is not None:
            return f'{host_gib:,} GiB'
    raise SystemExit(f'fit_table: no plan with {first + 2} GiB of host memory, where need was {said.strip()}')


def cell(planner, machine, gpu_gib):
    """What the table says of this model on a GPU of this size."""
    flags = machine_flags(machine, gpu_gib)
    needs = need(planner, flags)
    plan, _ = planner.plan(*flags, *MUCH_MEMORY, batch=FAST_BATCH)
    return f'{needs}; {rounded(plan["predicted"]["tokens_s"])} tokens/s' if plan else needs


def rounded(tokens_s):
    """To two digits: nobody has measured it."""
    digits = max(0, math.floor(math.log10(tokens_s)) - 1)
    return f'{round(tokens_s, -digits):,.0f}'


def people_count(count):
    return f'{count / 1e9:.1f} B' if count >= 1e9 else f'{count / 1e6:.0f} M'


def fit_table(bin_folder):
    rows = []
    for name, model in MODELS:
        with tempfile.TemporaryDirectory(prefix='elixir-fit-') as folder:
            planner = page_table.Planner(folder, bin_folder, [*model, *STEP])
            rows.append([name, people_count(params(planner)),
                         *(cell(planner, machine, gib) for _, machine, gib in GPUS)])
    return page_table.of_rows(['model', 'parameters', *(name for name, _, _ in GPUS)], rows)


def main(arguments=None):
    return page_table.main(__doc__, BEGIN, 'README.md', fit_table, arguments)


if __name__ == '__main__':
    sys.exit(main())
