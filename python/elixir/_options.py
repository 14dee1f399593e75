"""What a program gives an optimizer, checked and in the binding's terms."""

import re
from collections.abc import Iterable
from typing import Literal, TypedDict

import torch

from elixir._load import Error

TYPES = {torch.float32: 'fp32', torch.bfloat16: 'bf16', torch.float16: 'fp16'}
NAMES = {name: dtype for dtype, name in TYPES.items()}
UNITS = {'': 1, 'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30, 'TiB': 2**40}


class Options(TypedDict, total=False):
    """Further arguments of an optimizer. All but gpu_memory are the fields of elixir::Options with these names."""

    activations: str
    broadcast_buffers: bool
    chunk_numel: int
    exchange: Literal['host', 'collective']
    gpu_memory: int | str
    gpu_state_share: float
    keep_gradients: bool
    leave_out: Iterable[str]
    load_threads: int
    log_plan: bool
    long_blocks: int
    program_bytes: int
    ranks_timeout_s: float
    rcache_blocks: int
    runtime_dir: str
    spare_slots: int
    swing_stride: int
    trace: str
    update: Literal['deferred', 'early', 'immediate', 'sync']
    workers: int


class PlanOptions(Options, total=False):
    """Arguments of elixir.plan()."""

    dtype: torch.dtype | str | None
    device: torch.device | str
    accumulate: int | None
    max_grad_norm: float | None


# With one of them nothing is planned: the layout is asked for.
LAYOUT = frozenset(('chunk_numel', 'rcache_blocks', 'gpu_state_share'))


def dtype_of(given):
    """A torch.dtype of what the user calls it: torch.bfloat16, "bf16", or None."""
    if given is None or given in TYPES:
        return given
    if isinstance(given, str) and given in NAMES:
        return NAMES[given]
    raise Error(f'dtype={given!r}: it is torch.float32, torch.bfloat16 or torch.float16 ("fp32", "bf16", "fp16")')


def name_of(dtype):
    """The binding's name of a type in which Python computes."""
    if dtype == torch.float16:
        raise Error('FP16 needs a loss scale, which Python cannot set yet: use dtype="bf16", or "fp32" over an FP16 '
                    'model')
    if dtype not in TYPES:
        raise Error(f'the parameters are {dtype}, and Elixir computes in FP32 or BF16: give dtype="fp32" or "bf16"')
    return TYPES[dtype]


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
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        known = ', '.join(sorted(Options.__annotations__))
        raise TypeError(f'elixir.AdamW has no argument {unknown[0]!r}; further options are {known}')
