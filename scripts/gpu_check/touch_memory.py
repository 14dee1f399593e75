#!/usr/bin/env python3
"""touch_memory.py GB: has a machine whose memory grows with use grow to GB, and gives it all back.

Some virtual machines show far less memory than they may have, and Elixir refuses what does not fit
what shows. Never touches what is not there: when none is left and none comes, it ends with 1.
"""

import concurrent.futures
import ctypes
import mmap
import os
import re
import sys
import time

PIECE_BYTES = 1 << 28
SPARE_BYTES = 2 << 30  # left untouched
PATIENCE_S = 10        # for more to come

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
MAP_POPULATE = 0x8000
MAP_FAILED = ctypes.c_void_p(-1).value


def memory(name):
    with open('/proc/meminfo', encoding='ascii') as file:
        return int(re.search(rf'^{name}: +(\d+) kB', file.read(), re.M).group(1)) * 1024


def touch(_):
    """One piece, every page of it; None where the system refuses. ctypes lets threads run beside."""
    address = libc.mmap(None, PIECE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE,
                        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE, -1, 0)
    return None if address == MAP_FAILED else address


def wait_for_room(needed_bytes):
    """Whether there is room now, or comes in time."""
    end = time.monotonic() + PATIENCE_S
    while memory('MemAvailable') < needed_bytes + SPARE_BYTES:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def be_the_first_to_go():
    """If the system does run out of memory, it ends this process and no other."""
    try:
        with open('/proc/self/oom_score_adj', 'w', encoding='ascii') as file:
            file.write('1000')
    except OSError:
        pass


def main():
    wanted_bytes = int(float(sys.argv[1]) * 1e9)
    before = memory('MemTotal')
    print(f'MemTotal {before / 1e9:.1f} GB, MemAvailable {memory("MemAvailable") / 1e9:.1f} GB')
    if memory('MemAvailable') >= wanted_bytes:
        print(f'{wanted_bytes / 1e9:g} GB are there')
        return 0
    be_the_first_to_go()
    threads = len(os.sched_getaffinity(0))
    pieces, room = [], True
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        while len(pieces) * PIECE_BYTES < wanted_bytes:
            room = wait_for_room(threads * PIECE_BYTES)
            if not room:
                break
            pieces += [piece for piece in pool.map(touch, range(threads)) if piece is not None]
    touched = len(pieces) * PIECE_BYTES
    seconds = time.monotonic() - start
    for piece in pieces:
        libc.munmap(piece, PIECE_BYTES)
    print(f'touched {touched / 1e9:.1f} GB in {seconds:.1f} s; MemTotal {memory("MemTotal") / 1e9:.1f} GB, '
          f'MemAvailable {memory("MemAvailable") / 1e9:.1f} GB')
    if not room:
        print(f'no more than {touched / 1e9:.1f} of {wanted_bytes / 1e9:g} GB came: what needs more host '
              'memory will be refused; where you know that the machine has it all the same, set '
              f'ELIXIR_MEMORY_ROOM={wanted_bytes >> 30}GiB (docs/elixird.md)')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
