#!/usr/bin/env python3
"""What this machine is, as far as figures depend on it: printed, and as JSON to the file named."""

import glob
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys

GPU_FIELDS = ('name', 'memory.total', 'driver_version', 'compute_cap', 'pcie.link.gen.max',
              'pcie.link.width.max', 'clocks.max.sm', 'power.limit')


def text_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read().strip()
    except OSError:
        return None


def output_of(*command):
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10,
                              check=False).stdout.strip()
    except subprocess.TimeoutExpired:
        return None


def memory():
    """bytes by name, of /proc/meminfo."""
    return {name: int(kib) * 1024
            for name, kib in re.findall(r'^(\w+): +(\d+) kB', text_of('/proc/meminfo') or '', re.M)}


def processor():
    text = output_of('lscpu') or ''
    print(text, flush=True)
    fields = dict(re.findall(r'^([^:\n]+):\s+(.*)$', text, re.M))
    return {'model': fields.get('Model name', platform.processor()),
            'processors': len(os.sched_getaffinity(0)),
            'numa_nodes': len(glob.glob('/sys/devices/system/node/node[0-9]*')),
            'hypervisor': fields.get('Hypervisor vendor')}


def gpus():
    answer = output_of('nvidia-smi', f'--query-gpu={",".join(GPU_FIELDS)}', '--format=csv,noheader')
    return [dict(zip(GPU_FIELDS, (field.strip() for field in line.split(','))))
            for line in (answer or '').splitlines()]


def limit_of_locked_memory():
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return 'unlimited' if soft == resource.RLIM_INFINITY else soft


def main():
    meminfo = memory()
    huge = '/sys/kernel/mm/transparent_hugepage'
    found = {
        'date': output_of('date', '-u', '+%Y-%m-%d %H:%M'),
        'kernel': platform.release(),
        'user': os.getuid(),
        'processor': processor(),
        'memory_total_bytes': meminfo.get('MemTotal'),
        'memory_available_bytes': meminfo.get('MemAvailable'),
        'cgroup_limit': text_of('/sys/fs/cgroup/memory.max'),
        'locked_memory_limit': limit_of_locked_memory(),
        'transparent_hugepage': text_of(f'{huge}/enabled'),
        'shmem_enabled': text_of(f'{huge}/shmem_enabled'),
        'shm': output_of('df', '-h', '--output=size', '/dev/shm'),
        'gpus': gpus(),
        'glibc': os.confstr('CS_GNU_LIBC_VERSION'),
        'python': platform.python_version(),
    }
    print(text_of('/proc/meminfo'))
    print(output_of('nvidia-smi') or 'nvidia-smi is not there')
    print(json.dumps(found, indent=2))
    with open(sys.argv[1], 'w', encoding='utf-8') as file:
        json.dump(found, file, indent=2)


if __name__ == '__main__':
    main()
