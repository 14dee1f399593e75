#!/usr/bin/env python3
"""summary.py RESULTS: the results of a call as a section of bench/RESULTS.md, on standard output."""

import json
import os
import sys


def load(results, name):
    try:
        with open(os.path.join(results, f'{name}.json'), encoding='utf-8') as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def rows(results):
    """The stages so far, each as a dict."""
    names = ('stage', 'outcome', 'seconds', 'limit', 'command', 'why')
    with open(os.path.join(results, 'stages.tsv'), encoding='utf-8') as file:
        return [dict(zip(names, line.rstrip('\n').split('\t'))) for line in file]


def table(head, lines):
    text = f'| {" | ".join(head)} |\n|{"---|" * len(head)}\n'
    return text + ''.join(f'| {" | ".join(map(str, line))} |\n' for line in lines)


def number(value, form='{:.3g}'):
    return '-' if value is None else form.format(value)


def gib(value):
    return number(None if value is None else value / 2**30, '{:.2f}')


def machine(results):
    environment = load(results, 'environment')
    if environment is None:
        return 'Machine: not looked at.\n'
    processor = environment['processor']
    parts = [f'{gpu["name"]} ({gpu["memory.total"]}, driver {gpu["driver_version"]})'
             for gpu in environment['gpus']] or ['no GPU that nvidia-smi shows']
    parts.append(f'{processor["model"]}, {processor["processors"]} processors, '
                 f'{processor["numa_nodes"]} NUMA nodes')
    parts.append(f'{gib(environment["memory_total_bytes"])} GiB of memory '
                 f'({gib(environment["memory_available_bytes"])} free at the start)')
    parts.append(f'huge pages {chosen(environment["transparent_hugepage"])}, '
                 f'in shared memory {chosen(environment["shmem_enabled"])}')
    parts.append(f'kernel {environment["kernel"]}')
    doctor = load(results, 'doctor') or {}
    for gpu in (doctor.get('gpu') or {}).get('gpus', []):
        parts.append(f'link {number(gpu.get("h2d_gb_s"))} GB/s to the GPU, {number(gpu.get("d2h_gb_s"))} from it, '
                     f'{number(gpu.get("both_gb_s"))} both; read-only mappings '
                     f'{"can" if gpu.get("read_only_pinning") else "cannot"} be page-locked, writable ones '
                     f'{"cannot" if gpu.get("pinning_error") else "can"}')
    return f'Machine: {"; ".join(parts)}.\n'


def chosen(setting):
    """madvise, of 'always [madvise] never'."""
    if not setting:
        return 'unknown'
    return setting.split('[')[-1].split(']')[0]


def trainings(results, stages):
    lines = []
    for stage in stages:
        run = load(results, stage['stage'])
        if not isinstance(run, dict) or run.get('kind') != 'training' or not run.get('figures'):
            continue
        found = run['figures']
        lines.append((
            stage['stage'], number(found['tokens_s'], '{:.0f}'),
            f'{found["step_ms"]:.1f} ({found["step_ms_min"]:.1f} – {found["step_ms_max"]:.1f})',
            number(found.get('tflops')), gib(run['device_bytes']), gib(run['host_bytes']),
            number(found.get('exposed_ms'), '{:.1f}'), found['binding'],
            'yes' if run['page_locked'] else '**no**', f'`{run["command"]}`'))
    if not lines:
        return ''
    return ('\nMedians of the steps after the first two (least – most); TFLOPS by 8 floating-point operations a '
            'parameter and token with checkpointed activations, else 6; GiB of the whole machine over idle, at most.\n\n'
            + table(('run', 'tokens/s', 'step ms', 'TFLOPS', 'device GiB', 'host GiB', 'exposed ms', 'bound by',
                     'page-locked', 'command'), lines))


def scalars(found):
    """Figures by name; those of an object within by its name and theirs."""
    result = {}
    for key, value in found.items():
        if isinstance(value, dict):
            result.update({f'{key} {name}': inner for name, inner in scalars(value).items()})
        elif not isinstance(value, list):
            result[key] = value
    return result


def list_of(found):
    """What a benchmark lists: its rows, under whatever name, and the rest of its figures."""
    lists = [value for value in found.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return lists[0] if lists else []


def benchmarks(results, stages):
    text = ''
    for stage in stages:
        found = load(results, stage['stage'])
        if not isinstance(found, dict) or found.get('kind') == 'training' or stage['stage'] == 'environment':
            continue
        head = scalars(found)
        inner = list_of(found)
        text += f'\n{stage["stage"]}: ' + ', '.join(f'{key} {shown(value)}' for key, value in head.items()) + '\n'
        if inner:
            keys = [key for key in inner[0] if not isinstance(inner[0][key], (list, dict))]
            text += '\n' + table(keys, [[shown(row.get(key)) for key in keys] for row in inner])
    return text


def shown(value):
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def main():
    results = sys.argv[1]
    with open(os.path.join(results, 'call.txt'), encoding='utf-8') as file:
        call, elixir, torch = file.read().splitlines()
    stages = rows(results)
    date = (load(results, 'environment') or {}).get('date') or ''
    print(f'## gpu_check, call {call} ({date.split(" ")[0]})\n\n    scripts/gpu_check.sh run {call}\n')
    print(machine(results))
    print(f'Built as {elixir}, with torch {torch}.\n')
    print(table(('stage', 'outcome', 's', 'of s', 'why'),
                [(stage['stage'], stage['outcome'] if stage['outcome'] == 'ok' else f'**{stage["outcome"]}**',
                  stage['seconds'], stage['limit'], stage['why']) for stage in stages]), end='')
    print(trainings(results, stages) + benchmarks(results, [s for s in stages if s['stage'] != 'doctor']), end='')


if __name__ == '__main__':
    main()
