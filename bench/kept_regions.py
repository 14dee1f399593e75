#!/usr/bin/env python3
"""What a step gains if checkpointed regions keep their products, or everything (docs/training.md), against regions
that compute all again, on this machine's CPU.

    bench/kept_regions.py [--rounds 5] [--model small] [--batch 2] [--seq 256]

Each training is a process with an elixird of its own; the three take turns. A training's step is the median of those
after the third, and a ratio the median over rounds. Exit code 1: a ratio is below its limit (1.05 and 1.10), or the
weights differ.
"""

import re
import statistics
import sys

import trained_steps

LIMITS = {'products:1000': 1.05, 'keep': 1.10}


def trained(arguments, activations):
    """(median step in ms, hash of the weights)"""
    step_ms, said = trained_steps.trained(arguments, '--activations', activations, '--checksum')
    return step_ms, re.search(r'weights_xxh64 (\w+)', said).group(1)


def main():
    arguments = trained_steps.arguments_of(__doc__)
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
