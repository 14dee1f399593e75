#!/usr/bin/env python3
"""What a step gains if checkpointed regions keep their products, or everything (docs/training.md), against regions
that compute all again, on this machine's CPU.

    bench/kept_regions.py [--rounds 5] [--model small] [--batch 2] [--seq 256]

Each training is a process with an elixird of its own; the three take turns. A training's step is the median of those
after the third, and a ratio the median over rounds. Exit code 1: a ratio is below its limit (1.05 and 1.10), or the
weights differ.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
TRAIN = os.path.join(os.environ.get('ELIXIR_BUILD_DIR', os.path.join(ROOT, 'build', 'release')), 'bin', 'elixir-train')
LIMITS = {'products:1000': 1.05, 'keep': 1.10}
STEPS, WARM_UP = 8, 3


def trained(arguments, activations):
    """(median step in ms, hash of the weights)"""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, 'steps.jsonl')
        done = subprocess.run(
            [TRAIN, '--model', arguments.model, '--batch', str(arguments.batch), '--seq', str(arguments.seq), '--steps',
             str(STEPS), '--device', 'cpu', '--activations', activations, '--checksum', '--jsonl', log],
            env={**os.environ, 'ELIXIR_RUNTIME_DIR': folder}, check=True, capture_output=True, text=True)
        with open(log, encoding='utf-8') as file:
            steps = [record['step_ms'] for record in map(json.loads, file) if 'step_ms' in record]
    return statistics.median(steps[WARM_UP:]), re.search(r'weights_xxh64 (\w+)', done.stdout).group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--model', default='small')
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--seq', type=int, default=256)
    arguments = parser.parse_args()
    ratios = {activations: [] for activations in LIMITS}
    hashes = set()
    for number in range(arguments.rounds):
        recomputed, weights = trained(arguments, 'recompute')
        hashes.add(weights)
        said = f'{recomputed:.1f} ms recomputed'
        for activations, found in ratios.items():
            kept, weights = trained(arguments, activations)
            hashes.add(weights)
            found.append(recomputed / kept)
            said += f', {activations} {kept:.1f} ms ({found[-1]:.3f})'
        print(f'round {number + 1}: {said}', flush=True)
    medians = {activations: statistics.median(found) for activations, found in ratios.items()}
    print(f'{arguments.model}: ' + ', '.join(f'{activations} {ratio:.3f} times as fast (limit {LIMITS[activations]})'
                                             for activations, ratio in medians.items()) +
          f'; {"the same weights" if len(hashes) == 1 else "other weights"}')
    return 0 if len(hashes) == 1 and all(medians[name] >= limit for name, limit in LIMITS.items()) else 1


if __name__ == '__main__':
    sys.exit(main())
