#!/usr/bin/env python3
"""What a step gains where the second runs of checkpointed regions end early (docs/training.md), against
ELIXIR_STOP_EARLY=0, on this machine's CPU.

    bench/early_stop.py [--rounds 5] [--model small] [--batch 2] [--seq 256]

Each training is a process with an elixird of its own; the two take turns. A training's step is the median of those
after the third, and the ratio the median over rounds. Exit code 1: the ratio is below the limit (1.03).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
TRAIN = os.path.join(os.environ.get('ELIXIR_BUILD_DIR', os.path.join(ROOT, 'build', 'release')), 'bin', 'elixir-train')
LIMIT = 1.03
STEPS, WARM_UP = 8, 3


def step_ms(arguments, stops_early):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, 'steps.jsonl')
        environment = {**os.environ, 'ELIXIR_STOP_EARLY': str(int(stops_early)), 'ELIXIR_RUNTIME_DIR': folder}
        subprocess.run([TRAIN, '--model', arguments.model, '--batch', str(arguments.batch), '--seq', str(arguments.seq),
                        '--steps', str(STEPS), '--device', 'cpu', '--checkpoint-activations', '--jsonl', log],
                       env=environment, check=True, capture_output=True)
        with open(log, encoding='utf-8') as file:
            steps = [record['step_ms'] for record in map(json.loads, file) if 'step_ms' in record]
    return statistics.median(steps[WARM_UP:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--model', default='small')
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--seq', type=int, default=256)
    arguments = parser.parse_args()
    ratios = []
    for number in range(arguments.rounds):
        whole, early = step_ms(arguments, False), step_ms(arguments, True)
        ratios.append(whole / early)
        print(f'round {number + 1}: {whole:.1f} ms whole, {early:.1f} ms early, {ratios[-1]:.3f}', flush=True)
    ratio = statistics.median(ratios)
    print(f'{arguments.model}: {ratio:.3f} times as fast (limit {LIMIT})')
    return 0 if ratio >= LIMIT else 1


if __name__ == '__main__':
    sys.exit(main())
