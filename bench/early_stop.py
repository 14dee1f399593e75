#!/usr/bin/env python3
"""What a step gains where the second runs of checkpointed regions end early (docs/training.md), against
ELIXIR_STOP_EARLY=0, on this machine's CPU.

    bench/early_stop.py [--rounds 5] [--model small] [--batch 2] [--seq 256]

Each training is a process with an elixird of its own; the two take turns. A training's step is the median of those
after the third, and the ratio the median over rounds. Exit code 1: the ratio is below the limit (1.03).
"""

import statistics
import sys

import trained_steps

LIMIT = 1.03


def step_ms(arguments, stops_early):
    return trained_steps.trained(arguments, '--checkpoint-activations', ELIXIR_STOP_EARLY=str(int(stops_early)))[0]


def main():
    arguments = trained_steps.arguments_of(__doc__)
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
