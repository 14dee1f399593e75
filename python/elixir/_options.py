"""What a program gives an optimizer, checked and in the binding's terms."""

import re

import torch

from elixir._load import Error

TYPES = {torch.float32: 'fp32', torch.bfloat16: 'bf16', torch.float16: 'fp16'}
NAMES = {name: dtype for dtype, name in TYPES.items()}
UNITS = {'': 1, 'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30, 'TiB': 2**40}

# Options that go to the binding as they are: the fields of elixir::Options with these names.
PASSED = frozenset((
    'broadcast_buffers', 'chunk_numel', 'exchange', 'gpu_state_share', 'keep_gradients', 'leave_out', 'load_threads',
    'log_plan', 'long_blocks', 'program_bytes', 'ranks_timeout_s', 'rcache_blocks', 'runtime_dir', 'spare_slots',
    'swing_stride', 'trace', 'update', 'workers',
))
# With one of them nothing is planned: the layout is asked for.
LAYOUT = frozenset(('chunk_numel', 'rcache_blocks', 'gpu_state_share'))


def dtype_of(given):
    """A torch.dtype of what the user calls it: torch.bfloat16, "bf16", or None."""
    if given is None or given in TYPES:
        return given
    if isinstance(given, str) and given in NAMES:
        return NAMES[given]
    raise Error(f'dtype={given!r}: it is torch.float32, torch.bfloat16 or torch.float16 ("fp32", "bf16", "fp16")')


def bytes_of(given, name):
    """A number of bytes of 24 * 2**30 or "24GiB"."""
    if isinstance(given, int):
        return given
    match = re.fullmatch(r'\s*([0-9.]+)\s*([KMGT]iB|B|)\s*', given) if isinstance(given, str) else None
    if match is None:
        raise Error(f'{name}={given!r}: a number of bytes, or a text such as "24GiB"')
    return int(float(match.group(1)) * UNITS[match.group(2)])


def device_of(given):
    """"cpu", "cuda" or "cuda:1"; "auto" is CUDA where torch finds it."""
    if given in (None, 'auto'):
        return 'cuda' if torch.cuda.is_available() else 'cpu'
    device = torch.device(given)
    if device.type not in ('cpu', 'cuda'):
        raise Error(f'device={given!r}: Elixir computes on "cpu" or "cuda"')
    return str(device)


def check_names(options):
    unknown = sorted(set(options) - PASSED - {'gpu_memory'})
    if unknown:
        known = ', '.join(sorted(PASSED | {'gpu_memory'}))
        raise TypeError(f'elixir.AdamW has no argument {unknown[0]!r}; further options are {known}')
