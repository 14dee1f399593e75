#!/usr/bin/env python3
"""Whether this build trains what another one trained: the hash of all FP32 masters after ten runs.

  bench/same_bits.py OTHER_BUILD/bin [--bin build/release/bin]

Both builds run on this machine, one after the other: operators round as the processor at hand does,
so that a hash that was recorded elsewhere says nothing here. The runs cover types, exchanges,
placements of states, clipping, accumulation, update modes and strategies. Exit code 1 where a hash
differs; a last run, with another seed, must differ, or the comparison sees nothing.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The default text is what lies beside a build: both get one.
STEPS = ['--steps', '12', '--batch', '2', '--seq', '64', '--log-every', '0', '--checksum', '--threads',
         '1', '--data', os.path.join(REPOSITORY, 'docs', 'training.md')]
RUNS = [  # ranks, flags that both builds know
    (1, ['--dtype', 'fp32']),
    (1, ['--dtype', 'bf16', '--clip-norm', '0.5']),
    (1, ['--dtype', 'fp16']),
    (1, ['--dtype', 'bf16', '--gpu-home-share', '0.5', '--rcache-blocks', '3']),
    (1, ['--dtype', 'fp32', '--accumulate', '2', '--update', 'immediate']),
    (1, ['--dtype', 'bf16', '--checkpoint-activations', '--strategy', 'rcache-min']),
    (2, ['--dtype', 'bf16', '--exchange', 'host', '--clip-norm', '0.5']),
    (2, ['--dtype', 'bf16', '--accumulate', '3', '--exchange', 'host']),
    (2, ['--dtype', 'fp32', '--exchange', 'collective', '--gpu-home-share', '0.5']),
    (2, ['--dtype', 'bf16', '--exchange', 'collective', '--accumulate', '2', '--clip-norm', '0.5']),
]


def weights(folder, ranks, flags):
    with tempfile.TemporaryDirectory(prefix='elixir-same-bits-') as runtime:
        command = [os.path.join(folder, 'elixir-run'), '-n', str(ranks), '--runtime-dir', runtime,
                   os.path.join(folder, 'train_gpt2'), *STEPS, *flags]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r'weights_xxh64 ([0-9a-f]{16})', run.stdout)
    if run.returncode != 0 or found is None:
        sys.exit(f'{" ".join(command)} ended with {run.returncode}:\n{run.stderr[-2000:]}')
    return found.group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('other', help='the other build\'s folder of programs')
    parser.add_argument('--bin', default='build/release/bin', help='this build\'s')
    arguments = parser.parse_args()
    different = 0
    for ranks, flags in RUNS:
        before = weights(arguments.other, ranks, flags)
        after = weights(arguments.bin, ranks, flags)
        different += before != after
        print(f'{before} {after} {"same" if before == after else "DIFFERENT"}  '
              f'{ranks} rank{"s" if ranks > 1 else ""}, {" ".join(flags)}', flush=True)
    if weights(arguments.bin, 1, ['--dtype', 'fp32', '--seed', '2']) == weights(
            arguments.bin, 1, ['--dtype', 'fp32']):
        sys.exit('another seed trains the same weights: the comparison sees nothing')
    return 1 if different else 0


if __name__ == '__main__':
    sys.exit(main())
