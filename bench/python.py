#!/usr/bin/env python3
"""What a step through `import elixir` costs beside torch.optim.AdamW: CPU seconds of the trainer and of elixird.

    build/foreign_venv/bin/python bench/python.py [--rounds 5] [--models nano,small] [--types fp32,bf16]

A plain loop over transformers' GPT-2, one rank, all chunks in the rCache. torch's weights are FP32; with bf16 its
forward pass runs under autocast, and Elixir's model has dtype="bf16" over FP32 masters. Each training is a process of
its own; the two take turns, and the ratio is the median over rounds. Exit code 1: a ratio is above the limit (1.05).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
BUILD = os.environ.get('ELIXIR_BUILD_DIR', os.path.join(ROOT, 'build', 'release'))
LIMIT = 1.05
MODELS = {  # GPT-2's sizes, tokens of a batch, steps that are measured
    'nano': ({'vocab_size': 256, 'n_embd': 256, 'n_layer': 4, 'n_head': 4, 'n_positions': 256}, (8, 128), 40),
    'small': ({'vocab_size': 50257, 'n_embd': 768, 'n_layer': 12, 'n_head': 12, 'n_positions': 1024}, (2, 256), 8),
}
WARM_UP = 4


def cpu_s_of(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii') as file:
        fields = file.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def train(which, name, dtype, daemon):
    """One process: prints the CPU seconds of a step, of the trainer and of elixird, and its wall seconds."""
    import torch
    import transformers
    sizes, shape, steps = MODELS[name]
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))
    if which == 'torch':
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        import elixir
        optimizer = elixir.AdamW(model, lr=1e-4, dtype=dtype)
    tokens = torch.arange(shape[0] * shape[1]).view(shape) % sizes['vocab_size']

    def step():
        with torch.autocast('cpu', torch.bfloat16, enabled=which == 'torch' and dtype == 'bf16'):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def now():
        if which == 'elixir':
            optimizer.synchronize()
        return time.process_time(), cpu_s_of(daemon), time.monotonic()
    for _ in range(WARM_UP):
        step()
    before = now()
    for _ in range(steps):
        step()
    trainer, elixird, wall = ((b - a) / steps for a, b in zip(before, now()))
    print('measured ' + json.dumps({'trainer': trainer, 'elixird': elixird if which == 'elixir' else 0, 'wall': wall}))


def measured(which, name, dtype, daemon, folder):
    done = subprocess.run(
        [sys.executable, __file__, '--train', which, name, dtype, str(daemon)], check=True, capture_output=True, text=True,
        env={**os.environ, 'ELIXIR_RUNTIME_DIR': folder, 'OMP_WAIT_POLICY': 'passive',
             'PYTHONPATH': os.path.join(BUILD, 'python')})
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('measured ')]
    return json.loads(line[len('measured '):])


def compare(name, dtype, rounds, daemon, folder):
    """The median ratio of CPU seconds; prints the row of a table."""
    ratios, walls, both = [], [], None
    for _ in range(rounds):
        theirs, ours = (measured(which, name, dtype, daemon, folder) for which in ('torch', 'elixir'))
        ratios.append((ours['trainer'] + ours['elixird']) / theirs['trainer'])
        walls.append(ours['wall'] / theirs['wall'])
        both = theirs, ours
    theirs, ours = both
    ratio = statistics.median(ratios)
    print(f'| {name} | {dtype} | {theirs["trainer"]:.3f} | {ours["trainer"]:.3f} | {ours["elixird"]:.3f} | {ratio:.3f} | '
          f'{min(ratios):.2f} to {max(ratios):.2f} | {statistics.median(walls):.2f} |', flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--models', default='nano,small')
    parser.add_argument('--types', default='fp32,bf16')
    parser.add_argument('--train', nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(*given.train)
        return 0
    print('| model | type | torch, CPU s a step | trainer | elixird | ratio, median | rounds | wall |\n|' + '---|' * 8)
    with tempfile.TemporaryDirectory(prefix='elixir-bench-') as folder:
        daemon = subprocess.Popen([os.path.join(BUILD, 'bin', 'elixird'), '--runtime-dir', folder], stderr=subprocess.DEVNULL)
        try:
            found = [compare(name, dtype, given.rounds, daemon.pid, folder)
                     for name in given.models.split(',') for dtype in given.types.split(',')]
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    return int(max(found) > LIMIT)


if __name__ == '__main__':
    sys.exit(main())
