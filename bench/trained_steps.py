"""What benchmarks of elixir-train on this machine's CPU have in common: one training with an elixird of its own."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
TRAIN = os.path.join(os.environ.get('ELIXIR_BUILD_DIR', os.path.join(ROOT, 'build', 'release')), 'bin', 'elixir-train')
STEPS, WARM_UP = 8, 3


def arguments_of(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--model', default='small')
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--seq', type=int, default=256)
    return parser.parse_args()


def trained(arguments, *flags, **environment):
    """(the median step after the warm-up in ms, what the training printed)"""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, 'steps.jsonl')
        done = subprocess.run(
            [TRAIN, '--model', arguments.model, '--batch', str(arguments.batch), '--seq', str(arguments.seq), '--steps',
             str(STEPS), '--device', 'cpu', *flags, '--jsonl', log],
            env={**os.environ, **environment, 'ELIXIR_RUNTIME_DIR': folder}, check=True, capture_output=True, text=True)
        with open(log, encoding='utf-8') as file:
            steps = [record['step_ms'] for record in map(json.loads, file) if 'step_ms' in record]
    return statistics.median(steps[WARM_UP:]), done.stdout
