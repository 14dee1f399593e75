#!/usr/bin/env python3
"""The step time and host memory of Elixir beside PyTorch's and DeepSpeed's ways of offloading.

Each system trains the same GPT-2 (shapes, first values, rows, types, AdamW, threads) in processes of
its own, all in turn, round after round: what else the machine does falls on all of them alike.
scripts/peers_setup.sh installs DeepSpeed once. A system that fails, or whose loss departs from the
others', becomes a row with an error, and the exit code is 1.

  elixir  train_gpt2 under elixir-run, as a user starts it
  zero2   DeepSpeed ZeRO-2, optimizer offloaded to DeepSpeedCPUAdam
  zero3   DeepSpeed ZeRO-3, the same
  fsdp2   PyTorch fully_shard a block, fused AdamW on the CPU
  torch   PyTorch alone: one process with the threads and the rows of all ranks, fused AdamW
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from peer_processes import Failure, Run, text_of

REPOSITORY = Path(__file__).resolve().parent.parent
VENV = REPOSITORY / 'build/peers_venv'  # of scripts/peers_setup.sh
SYSTEMS = ('elixir', 'zero2', 'zero3', 'fsdp2', 'torch')

# As planner/models/transformer_config.cpp has them; another shape is found by the losses.
OPENAI = {'vocabulary': 50257, 'context': 1024}
MODELS = {
    'nano': {'vocabulary': 256, 'context': 128, 'width': 256, 'layers': 4, 'heads': 4},
    'small': {**OPENAI, 'width': 768, 'layers': 12, 'heads': 12},
    'medium': {**OPENAI, 'width': 1024, 'layers': 24, 'heads': 16},
    '1b': {**OPENAI, 'width': 2048, 'layers': 20, 'heads': 16},
    '4b': {**OPENAI, 'width': 3072, 'layers': 32, 'heads': 24},
}
BATCH = {'nano': 4}  # rows a rank; 1 for all others
ADAMW = {'betas': (0.9, 0.98), 'eps': 1e-8, 'weight_decay': 0.1}
SEED = 1
TEXT_BYTES = 4 << 20

STEPS_TO_FALL = 12  # as many as by default, the warm-up among them

# How far a step's loss may be from Elixir's, as a share of it. Measured on nano: 1e-7 in FP32; in BF16
# 3e-4, as DeepSpeed begins with rounded masters; with a learning rate 1.5 times as great 4e-2.
LOSS_TOLERANCE = {'fp32': 1e-4, 'bf16': 5e-3}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    whole, number = positive(int), positive(float)
    parser.add_argument('--model', choices=MODELS, default='nano')
    parser.add_argument('--dtype', choices=LOSS_TOLERANCE, default='bf16')
    parser.add_argument('--ranks', type=whole, default=2)
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, default=SYSTEMS, metavar='NAME',
                        help=f'of {", ".join(SYSTEMS)} (default: all)')
    parser.add_argument('--steps', type=whole, default=10, help='steps a run that count')
    parser.add_argument('--warmup', type=whole, default=2, help='steps before them that do not')
    parser.add_argument('--rounds', type=whole, default=3, help='runs of each system')
    parser.add_argument('--batch', type=whole, help='sequences a rank (default: nano 4, others 1)')
    parser.add_argument('--seq', type=whole, default=128, help='tokens a sequence')
    parser.add_argument('--lr', type=number, default=3e-4, help='constant')
    parser.add_argument('--threads', type=whole,
                        help="of a rank's operators (default: the cores, shared among the ranks)")
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--gpu-memory', type=bytes_of, default=0, metavar='BYTES',
                        help='device memory a rank may take, as in 40GiB (default: all)')
    parser.add_argument('--checkpoint-activations', action='store_true', help='of each block')
    parser.add_argument('--data', type=Path, help="a text (default: Python's own sources)")
    parser.add_argument('--build', type=Path, default=REPOSITORY / 'build/release',
                        help="Elixir's build folder")
    parser.add_argument('--python', default=default_python(), help='that has torch and DeepSpeed')
    parser.add_argument('--timeout', type=number, default=1800, metavar='S', help='of one run')
    parser.add_argument('--budget', type=number, default=float('inf'), metavar='S',
                        help='of all runs: one that would take longer than is left is left out')
    parser.add_argument('--zero', type=name_and_value, action='append', default=[], metavar='NAME=VALUE',
                        help="sets one of DeepSpeed's zero_optimization options, to tune it")
    parser.add_argument('--alter-lr', type=name_and_value, metavar='SYSTEM=FACTOR',
                        help="for tests: one system's learning rate is another, which must be found")
    parser.add_argument('--json', action='store_true', help='one JSON object')
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or BATCH.get(arguments.model, 1)
    cores = len(os.sched_getaffinity(0))
    arguments.threads = arguments.threads or max(1, cores // arguments.ranks)
    if arguments.data and not arguments.data.is_file():
        parser.error(f'--data {arguments.data} is not a file')
    if arguments.seq > MODELS[arguments.model]['context']:
        parser.error(f'--seq {arguments.seq} is longer than the context of --model {arguments.model}')
    return arguments


def positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f'{text} is not greater than 0')
        return value
    parse.__name__ = kind.__name__
    return parse


def bytes_of(text):
    match = re.fullmatch(r'(\d+(?:\.\d+)?)(KiB|MiB|GiB|TiB|)', text)
    if not match:
        raise argparse.ArgumentTypeError(f'{text} is not a number of bytes, as in 40GiB')
    return int(float(match[1]) * 1024 ** ('', 'KiB', 'MiB', 'GiB', 'TiB').index(match[2]))


def name_and_value(text):
    name, equals, value = text.partition('=')
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f'{text} is not NAME=VALUE, its value a number, true or false')


def default_python():
    for folder in (VENV, REPOSITORY / '.venv'):
        if (folder / 'bin/python').exists():
            return str(folder / 'bin/python')
    return sys.executable


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def lr_of(arguments, system):
    name, factor = arguments.alter_lr or ('', 1)
    return arguments.lr * (factor if name == system else 1)


def train_elixir(arguments, data, folder):
    jsonl = Path(folder) / 'elixir.jsonl'
    programs = arguments.build / 'bin'
    for name in ('elixir-run', 'train_gpt2', 'elixird'):
        if not os.access(programs / name, os.X_OK):
            raise Failure(f'{programs / name} is not there; scripts/build.sh builds it, or name '
                          'another folder with --build')
    command = [programs / 'elixir-run', '-n', arguments.ranks, '--', programs / 'train_gpt2',
               '--model', arguments.model, '--data', data, '--dtype', arguments.dtype,
               '--batch', arguments.batch, '--seq', arguments.seq, '--seed', SEED,
               '--steps', arguments.warmup + arguments.steps, '--threads', arguments.threads,
               '--lr', lr_of(arguments, 'elixir'), '--lr-schedule', 'constant',
               '--warmup-steps', 0, '--weight-decay', ADAMW['weight_decay'],
               '--beta1', ADAMW['betas'][0], '--beta2', ADAMW['betas'][1], '--eps', ADAMW['eps'],
               '--decay-all',  # as the others do
               '--device', arguments.device, '--jsonl', jsonl, '--log-every', 0]
    if arguments.gpu_memory:
        command += ['--gpu-memory', arguments.gpu_memory]
    if arguments.checkpoint_activations:
        command += ['--checkpoint-activations']
    with Run(folder, arguments.timeout) as run:
        run.start(command, {**common_environment(arguments),
                            'ELIXIR_RUNTIME_DIR': str(Path(folder) / 'runtime')})
        host_bytes = run.wait()
    steps = [json.loads(line) for line in jsonl.read_text().splitlines()]
    return {'step_ms': [step['step_ms'] for step in steps],
            'losses': [step['loss'] for step in steps], 'host_bytes': host_bytes}


def common_environment(arguments):
    environment = {'OMP_NUM_THREADS': str(arguments.threads)}
    if arguments.device == 'cuda':
        environment['TORCH_CUDNN_SDPA_DEPRIORITIZED'] = '1'  # the same attention kernels for all
    return environment


def train_peer(arguments, system, data, folder):
    if system.startswith('zero') and not has_module(arguments.python, 'deepspeed'):
        raise Failure(f'{arguments.python} has no DeepSpeed; scripts/peers_setup.sh installs it')
    # torch alone is one rank that does the work of all.
    ranks, share = (1, arguments.ranks) if system == 'torch' else (arguments.ranks, 1)
    report = Path(folder) / 'report'
    threads = arguments.threads * share
    job = {**ADAMW, 'system': system, 'shape': MODELS[arguments.model], 'dtype': arguments.dtype,
           'ranks': ranks, 'batch': arguments.batch * share, 'seq': arguments.seq, 'seed': SEED,
           'steps': arguments.warmup + arguments.steps, 'threads': threads,
           'lr': lr_of(arguments, system), 'device': arguments.device,
           'gpu_memory_bytes': arguments.gpu_memory, 'data': str(data), 'report': str(report),
           'checkpoint_activations': arguments.checkpoint_activations, 'zero': dict(arguments.zero)}
    bin_folder = Path(arguments.python).absolute().parent
    environment = {**common_environment(arguments), 'OMP_NUM_THREADS': str(threads),
                   'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port()),
                   'WORLD_SIZE': str(ranks), 'LOCAL_WORLD_SIZE': str(ranks),
                   'DS_ACCELERATOR': arguments.device, 'DS_SKIP_CUDA_CHECK': '1',
                   'PATH': f'{bin_folder}:{os.environ.get("PATH", "")}'}  # ninja is there
    if bin_folder.parent == VENV:
        environment['TORCH_EXTENSIONS_DIR'] = str(VENV / 'extensions')
    cores = sorted(os.sched_getaffinity(0))
    with Run(folder, arguments.timeout) as run:
        for rank in range(ranks):
            # Each rank keeps to cores of its own, as DeepSpeed's documentation advises on CPUs.
            own = cores[rank * threads:(rank + 1) * threads] if ranks * threads <= len(cores) else None
            run.start([arguments.python, '-B', '-W', 'ignore',
                       REPOSITORY / 'bench/peer_rank.py', json.dumps(job)],
                      {**environment, 'RANK': str(rank), 'LOCAL_RANK': str(rank)}, own)
        host_bytes = run.wait()
    reports = [json.loads(text_of(f'{report}.{rank}')) for rank in range(ranks)]
    losses = [statistics.mean(step) for step in zip(*(one['losses'] for one in reports))]
    result = {'step_ms': reports[0]['step_ms'], 'losses': losses, 'host_bytes': host_bytes}
    if arguments.device == 'cuda':
        result['device_bytes'] = max(one['device_bytes'] for one in reports)
    return result


def has_module(python, name):
    test = f'import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)'
    return subprocess.run([python, '-c', test], check=False).returncode == 0


def check_fall(losses):
    """Of large models the first few steps may raise the loss; that it is the same training is checked."""
    rises = losses[-1] > losses[0] and len(losses) < STEPS_TO_FALL
    if not losses[-1] < losses[0] and not rises:
        raise Failure(f'the loss does not fall: {losses[0]:.4f} to {losses[-1]:.4f}')


def check_losses(losses, reference_name, reference, tolerance):
    """Training is the same training: every step's loss is that of the reference."""
    apart = [abs(ours - theirs) / theirs for ours, theirs in zip(losses, reference)]
    worst = apart.index(max(apart))
    if not apart[worst] <= tolerance:
        raise Failure(f'another training: the loss of step {worst + 1} is {losses[worst]:.5f}, that '
                      f'of {reference_name} {reference[worst]:.5f}: {apart[worst]:.1e} of it apart, '
                      f'where {tolerance:.0e} is allowed')
    return apart[worst]


def write_text(path):
    """Some text: Python's own sources."""
    library = Path(sysconfig.get_paths()['stdlib'])
    text = b''
    for source in sorted(library.glob('*.py')):
        text += source.read_bytes()
        if len(text) > TEXT_BYTES:
            break
    path.write_bytes(text)
    return path


def run_rounds(arguments, folder):
    """(results of each system's rounds, error of each system that failed)."""
    data = arguments.data or write_text(Path(folder) / 'data.txt')
    results, errors, reference = {system: [] for system in arguments.systems}, {}, None
    end, timeout, longest = time.monotonic() + arguments.budget, arguments.timeout, {}
    for number in range(arguments.rounds):
        for system in arguments.systems:
            begin = time.monotonic()
            if system in errors or (results[system] and end - begin < longest[system]):
                continue
            if begin >= end:
                errors[system] = f'left out: the --budget of {arguments.budget:.0f} s was used up'
                print(f'peers: {system} is {errors[system]}', file=sys.stderr)
                continue
            arguments.timeout = min(timeout, end - begin)
            print(f'peers: round {number + 1} of {arguments.rounds}, {system}', end=' ',
                  file=sys.stderr, flush=True)
            try:
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    result = (train_elixir(arguments, data, own) if system == 'elixir' else
                              train_peer(arguments, system, data, own))
                check_fall(result['losses'])
                reference = reference or (system, result['losses'])
                result['apart'] = check_losses(result['losses'], *reference,
                                               LOSS_TOLERANCE[arguments.dtype])
                results[system].append(result)
                longest[system] = max(longest.get(system, 0), time.monotonic() - begin)
                counted = result['step_ms'][arguments.warmup:]
                print(f'{statistics.median(counted):.1f} ms a step, loss {result["losses"][0]:.4f} '
                      f'to {result["losses"][-1]:.4f}', file=sys.stderr, flush=True)
            except Failure as failure:
                errors[system] = str(failure)
                print(f'failed: {failure}', file=sys.stderr, flush=True)
    return results, errors


def row_of(arguments, system, rounds, elixir_rounds):
    steps = [ms for one in rounds for ms in one['step_ms'][arguments.warmup:]]
    median_ms = statistics.median(steps)
    tokens = arguments.ranks * arguments.batch * arguments.seq
    row = {'system': system, 'step_ms': median_ms, 'step_ms_min': min(steps),
           'step_ms_max': max(steps), 'tokens_s': 1e3 * tokens / median_ms,
           'host_bytes': max(one['host_bytes'] for one in rounds),
           'loss_first': rounds[0]['losses'][0], 'loss_last': rounds[0]['losses'][-1],
           'loss_apart': max(one['apart'] for one in rounds), 'ratio': None}
    if 'device_bytes' in rounds[0]:
        row['device_bytes'] = max(one['device_bytes'] for one in rounds)
    if elixir_rounds:  # round by round: both saw the same machine
        row['ratio'] = statistics.median(
            statistics.median(one['step_ms'][arguments.warmup:]) /
            statistics.median(ours['step_ms'][arguments.warmup:])
            for one, ours in zip(rounds, elixir_rounds))
    return row


def print_table(arguments, rows):
    cpu = re.search(r'model name\s*: (.*)', text_of('/proc/cpuinfo'))
    print(f'{arguments.model}, {arguments.dtype}, {arguments.ranks} ranks of {arguments.batch} x '
          f'{arguments.seq} tokens and {arguments.threads} threads, {arguments.device}; '
          f'{cpu[1] if cpu else "?"}, {len(os.sched_getaffinity(0))} cores\n')
    print('| system | ms a step (min – max) | of Elixir\'s | tokens/s | host MiB | loss | apart |')
    print('|---|---|---|---|---|---|---|')
    for row in rows:
        if 'error' in row:
            print(f'| {row["system"]} | {row["error"]} | | | | | |')
            continue
        ratio = f'{row["ratio"]:.2f}' if row['ratio'] else ''
        print(f'| {row["system"]} | {row["step_ms"]:.1f} ({row["step_ms_min"]:.1f} – '
              f'{row["step_ms_max"]:.1f}) | {ratio} | {row["tokens_s"]:.0f} | '
              f'{row["host_bytes"] / 2**20:.0f} | {row["loss_first"]:.4f} to '
              f'{row["loss_last"]:.4f} | {row["loss_apart"]:.1e} |')


def main():
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix='elixir-peers-') as folder:
        results, errors = run_rounds(arguments, folder)
    rows = []
    for system in arguments.systems:
        if system in errors:
            nothing = ('step_ms', 'step_ms_min', 'step_ms_max', 'tokens_s', 'host_bytes', 'ratio')
            rows.append({'system': system, **dict.fromkeys(nothing), 'error': errors[system]})
        else:
            ours = results.get('elixir') if 'elixir' not in errors else None
            rows.append(row_of(arguments, system, results[system], ours))
    if arguments.json:
        print(json.dumps({'rows': rows}))
    else:
        print_table(arguments, rows)
    return 1 if errors else 0


if __name__ == '__main__':
    sys.exit(main())
