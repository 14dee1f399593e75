#!/usr/bin/env python3
"""The table of docs/planner.md of what each region keeps, from the planner.

  scripts/region_table.py              prints the table
  scripts/region_table.py --write      writes it into the page, between its two marks
  scripts/region_table.py --check      exit 1 if the page has another table

A cell has the step if regions keep nothing, how many times as fast the chosen plan is, and what its regions keep or
send. Where nothing fits if regions keep nothing, it has the step of the chosen plan alone.
"""

import json
import os
import sys
import tempfile

import page_table

BEGIN = '<!-- table: scripts/region_table.py -->\n'
MODELS = (('GPT-2 4b', ['--model', 'gpt2-4b']),
          ('Llama-3-8B', ['--config', 'examples/configs/llama-3-8b.json']))
SEQ = 1024
BATCHES = (8, 32)
# A host that never binds what fits.
MACHINES = (('h100', '24GiB'), ('h100', '40GiB'), ('h100', '80GiB'), ('rtx4090', '24GiB'))
HOST = ['--host-memory', '512GiB']


def cell(planner, batch, machine, memory):
    flags = ['--machine', os.path.join('examples', 'machines', f'{machine}.json'), '--gpu-memory', memory, *HOST]
    plans = [planner.plan(*flags, '--activations', choice, batch=batch)[0] for choice in ('recompute', 'auto')]
    if None in plans:
        return 'does not fit' if plans[1] is None else f"{plans[1]['predicted']['step_s']:.2f} s, inputs sent"
    recompute, chosen = (plan['predicted']['step_s'] for plan in plans)
    regions = plans[1]['regions']
    words = (('keep_all', 'all'), ('keep_products', 'products'), ('host_products', 'sent'), ('host_boundaries', 'inputs'))
    kept = [f'{regions[name]} {what}' for name, what in words if regions[name] > 0]
    return f'{recompute:.2f} s, {recompute / chosen:.2f}, ' + (', '.join(kept) or 'nothing')


def column(bin_folder, model, batch):
    """By machine and memory, what the table says of this model and batch."""
    with tempfile.TemporaryDirectory(prefix='elixir-regions-') as folder:
        planner = page_table.Planner(folder, bin_folder, [*model, '--seq', str(SEQ)])
        return {f'{machine}, {memory[:-3]} GiB': cell(planner, batch, machine, memory) for machine, memory in MACHINES}


def columns():
    return [(f'{name}, {batch * SEQ // 1024} k tokens', model, batch) for name, model in MODELS for batch in BATCHES]


def longest(bin_folder):
    """Of Llama-3-8B in 24 GiB: the longest sequence, and that without activations in host memory."""
    with open(os.path.join(page_table.ROOT, MODELS[1][1][1]), encoding='utf-8') as file:
        config = {**json.load(file), 'max_position_embeddings': 2**20}
    with tempfile.TemporaryDirectory(prefix='elixir-regions-') as folder:
        path = os.path.join(folder, 'config.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(config, file)
        planner = page_table.Planner(folder, bin_folder, [])
        done = planner.run('plan', '--config', path, '--largest', 'seq', '--machine',
                           os.path.join('examples', 'machines', 'h100.json'), '--gpu-memory', '24GiB', *HOST, '--json')
    if done.returncode != 0:
        raise SystemExit(f'elixirctl plan ended with {done.returncode}: {done.stderr.strip()}')
    largest = json.loads(done.stdout)['largest']
    return largest['value'], largest['on_device']


def sentence(bin_folder):
    value, on_device = longest(bin_folder)
    return (f'\nOne sequence of Llama-3-8B in 24 GiB has at most {value:,} tokens, and {on_device:,} without activations in\n'
            f'host memory: {value / on_device:.2f} times.\n')


def region_table(bin_folder):
    found = [column(bin_folder, model, batch) for _, model, batch in columns()]
    rows = [[machine, *(cells[machine] for cells in found)] for machine in found[0]]
    return page_table.of_rows(['machine', *(name for name, _, _ in columns())], rows) + sentence(bin_folder)


if __name__ == '__main__':
    sys.exit(page_table.main(__doc__, BEGIN, os.path.join('docs', 'planner.md'), region_table))
