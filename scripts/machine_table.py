#!/usr/bin/env python3
"""The table of docs/planner.md of models on the machines of examples/machines, from the planner.

  scripts/machine_table.py              prints the table
  scripts/machine_table.py --write      writes it into the page, between its two marks
  scripts/machine_table.py --check      exit 1 if the page has another table

A cell has tokens per second of all GPUs, the step, the share of the GPUs' peak, and the leg that binds.
"""

import glob
import os
import sys
import tempfile

import page_table

BEGIN = '<!-- table: scripts/machine_table.py -->\n'
MODELS = (('Llama-3-8B', ['--config', 'examples/configs/llama-3-8b.json']),
          ('Qwen-2.5-32B', ['--config', 'examples/configs/qwen-2.5-32b.json']),
          ('Llama-2-70B', ['--model', 'llama2-70b']))
STEP = ['--seq', '2048', '--dtype', 'bf16']
BATCH = 2


def machines():
    return sorted(glob.glob(os.path.join(page_table.ROOT, 'examples', 'machines', '*.json')))


def cell(planner, machine):
    plan, _ = planner.plan('--machine', machine, batch=BATCH)
    if plan is None:
        return 'does not fit'
    told = plan['predicted']
    return (f'{told["tokens_s"]:,.0f} tokens/s, {told["step_s"]:.2f} s, MFU {100 * told["mfu"]:.0f} %, '
            f'{told["binding"]}')


def column(bin_folder, model):
    """By machine, what the table says of this model."""
    with tempfile.TemporaryDirectory(prefix='elixir-machines-') as folder:
        planner = page_table.Planner(folder, bin_folder, [*model, *STEP])
        return {os.path.basename(machine)[:-5]: cell(planner, machine) for machine in machines()}


def machine_table(bin_folder):
    columns = [column(bin_folder, model) for _, model in MODELS]
    rows = [[f'`{machine}`', *(cells[machine] for cells in columns)] for machine in columns[0]]
    return page_table.of_rows(['machine file', *(name for name, _ in MODELS)], rows)


if __name__ == '__main__':
    sys.exit(page_table.main(__doc__, BEGIN, os.path.join('docs', 'planner.md'), machine_table))
