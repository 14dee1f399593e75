#!/usr/bin/env python3
"""Runs train_gpt2 under elixir-run and writes what its steps took to RESULTS/NAME.json.

  measure_training.py --name NAME --results RESULTS -- FLAGS OF TRAIN_GPT2

The first two steps count for nothing: they make plans and memory. Ends as train_gpt2 does, and with 1
when some of what elixird shares with the trainer was not page-locked.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading

LEFT_OUT = 2  # steps
HERE = os.environ.get('HERE') or os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))


def program(name):
    return os.path.join(HERE, 'bin', name)


def host_used_bytes():
    with open('/proc/meminfo', encoding='ascii') as file:
        found = dict(re.findall(r'^(\w+): +(\d+) kB', file.read(), re.M))
    return (int(found['MemTotal']) - int(found['MemAvailable'])) * 1024


class Watch:
    """The greatest use of the host's and the first GPU's memory over that at the start. Of the whole
    machine, which is idle beside."""

    EVERY_S = 0.25

    def __init__(self):
        self.host_before = self.host = host_used_bytes()
        self.device_before = self.device = None
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.watch_host)]
        try:
            self.smi = subprocess.Popen(
                ['nvidia-smi', '--query-gpu=memory.used', '--format=csv,noheader,nounits', '--id=0',
                 f'--loop-ms={int(1000 * self.EVERY_S)}'],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.threads.append(threading.Thread(target=self.watch_device))
        except FileNotFoundError:
            self.smi = None
        for thread in self.threads:
            thread.start()

    def watch_host(self):
        while not self.over.wait(self.EVERY_S):
            self.host = max(self.host, host_used_bytes())

    def watch_device(self):
        for line in self.smi.stdout:
            if line.strip().isdigit():
                used = int(line) << 20
                if self.device_before is None:
                    self.device_before = used
                self.device = max(self.device or 0, used)

    def end(self):
        self.over.set()
        if self.smi is not None:
            self.smi.terminate()
            self.smi.wait()
        for thread in self.threads:
            thread.join()
        return {'host_bytes': self.host - self.host_before,
                'device_bytes': None if self.device is None else self.device - self.device_before}


def flag(flags, name):
    return flags[flags.index(name) + 1] if name in flags else None


def parameters(flags):
    """Of the model, as elixirctl knows them; None where it does not."""
    answer = subprocess.run([program('elixirctl'), 'estimate', '--model', f'gpt2-{flag(flags, "--model")}',
                             '--json'], capture_output=True, text=True, check=False)
    try:
        return json.loads(answer.stdout)['params']
    except (ValueError, KeyError):
        return None


def read_steps(path):
    try:
        with open(path, encoding='utf-8') as file:
            return [json.loads(line) for line in file if line.endswith('\n')]
    except FileNotFoundError:
        return []


def figures(steps, flags, numel):
    """Medians over the steps that count, of everything that has a number in each."""
    kept = steps[LEFT_OUT:]
    if not kept:
        return {}
    result = {'steps': len(kept)}
    for key in kept[0]:
        values = [step.get(key) for step in kept]
        if key != 'step' and all(type(value) in (int, float) for value in values):
            result[key] = statistics.median(values)
    times = [step['step_ms'] for step in kept]
    result['step_ms_min'], result['step_ms_max'] = min(times), max(times)
    bindings = [step.get('binding') for step in kept]
    result['binding'] = max(set(bindings), key=bindings.count)
    tokens = statistics.median(step['tokens_s'] * step['step_ms'] / 1000 for step in kept)
    result['tokens_s'] = tokens / result['step_ms'] * 1000
    if numel:
        # Forward 2, backward 4; what is checkpointed runs forward once more.
        per_token = 8 if '--checkpoint-activations' in flags else 6
        result['tflops'] = per_token * numel * tokens / result['step_ms'] * 1e-9
    return result


def run(command):
    """Its output passes through; the exit code, the lines that tell of memory that is not page-locked,
    and what the plan says, if there is one: its bytes on the device, and measured and predicted steps."""
    refused, planned = [], {'planned_device': None}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        for line in child.stdout:
            print(line, end='', flush=True)
            if re.search(r'event=not_page_locked|\bpageable_bytes=[1-9]', line):
                refused.append(line.strip())
            if found := re.search(r' device ([\d.]+ \w+) of ', line):
                planned['planned_device'] = found.group(1)
            if found := re.search(r'event=plan_check (.*)', line):
                planned['plan_check'] = found.group(1)
            if found := re.search(r'event=first_probe_done seconds=([\d.]+)', line):
                planned['first_probe_s'] = float(found.group(1))
    return child.returncode, refused, planned


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--name', required=True)
    parser.add_argument('--results', required=True)
    parser.add_argument('flags', nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    flags = [word for word in arguments.flags if word != '--']
    path = os.path.join(arguments.results, arguments.name)
    command = [program('elixir-run'), '-n', '1', program('train_gpt2'), *flags,
               '--jsonl', f'{path}.jsonl', '--trace', f'{path}.trace.json']
    watch = Watch()
    try:
        code, refused, planned = run(command)
    finally:
        memory = watch.end()
    words = ['train_gpt2', *(word.removeprefix(f'{HERE}/') for word in flags)]
    report = {'kind': 'training', 'command': ' '.join(words), 'exit_code': code,
              'model': flag(flags, '--model'), 'parameters': parameters(flags),
              'page_locked': not refused, **planned, **memory}
    report['figures'] = figures(read_steps(f'{path}.jsonl'), flags, report['parameters'])
    with open(f'{path}.json', 'w', encoding='utf-8') as file:
        json.dump(report, file, indent=2)
    print(json.dumps(report['figures']))
    if code == 0 and refused:
        print(f'not all memory is page-locked: {refused[0]}')
        return 1
    return code if code >= 0 else 128 - code


if __name__ == '__main__':
    sys.exit(main())
