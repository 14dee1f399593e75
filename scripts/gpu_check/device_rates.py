#!/usr/bin/env python3
"""What a GPU reaches in each kind of work of a training step, by torch alone.

  device_rates.py RESULT.json [--tiny]

Beside `elixirctl probe`, whose figures these must bear out: bytes a second of operators that only move
memory, the time of one small operator, floating-point operations a second of products and of attention,
in BF16; and where the time of a GPT-2's forward and backward pass goes, by kind of kernel.
"""

import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'bench'))
import peer_rank  # noqa: E402  the GPT-2 of bench/peers.py: the operators of models/gpt2.cpp
import peers  # noqa: E402

BACKENDS = {'flash': SDPBackend.FLASH_ATTENTION, 'cudnn': SDPBackend.CUDNN_ATTENTION}
# By parts of a kernel's name, the first that fits.
KINDS = (('attention', ('flash', 'fmha', 'sdpa')), ('products', ('gemm', 'nvjet', 'cutlass', 'xmma')),
         ('norms', ('layer_norm', 'layernorm', 'gammabeta')), ('loss', ('softmax', 'nll_loss')),
         ('copies', ('copy', 'memcpy', 'memset')), ('sums', ('reduce',)),
         ('embeddings', ('embedding', 'index', 'gather', 'scatter')), ('elementwise', ('elementwise',)))


def milliseconds(work, rounds=7):
    """Median time on the device of one call, several in a round where they are short."""
    for _ in range(2):
        work()
    times = []
    calls = 1
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
        calls = max(calls, min(50, int(2 / max(times[-1], 1e-3))))
    return statistics.median(times[1:])


def random(*shape):
    return torch.randn(*shape, device='cuda', dtype=torch.bfloat16)


def memory(numel):
    x, y, z = (random(numel) for _ in range(3))
    moved = {'copy': (lambda: y.copy_(x), 2), 'add': (lambda: torch.add(x, y, out=z), 3),
             'to_float': (lambda: x.float(), 3)}  # in units of a BF16 tensor
    return [{'operator': name, 'gb_s': units * 2 * numel / milliseconds(work) * 1e-6}
            for name, (work, units) in moved.items()]


def operators_us():
    """Of one operator too small to count: as the device runs them, one enqueued after the other."""
    small = random(256)
    return 1e3 * milliseconds(lambda: [small.add_(1) for _ in range(200)]) / 200


def products(tokens, widths):
    rows = []
    for width in widths:
        for count in tokens:
            x, w, y = random(count, width), random(width, 4 * width), random(count, 4 * width)
            flops = 2 * count * width * 4 * width
            rows.append({'tokens': count, 'width': width,
                         'forward_tflops': flops / milliseconds(lambda: x @ w) * 1e-9,
                         'of_weight_tflops': flops / milliseconds(lambda: x.t() @ y) * 1e-9})
    return rows


def attention(tokens, sequences):
    """Of the whole square of scores, although the half is masked: as the profile counts it."""
    rows = []
    for head in (64, 128):
        for seq in sequences:
            batch, heads = max(1, tokens // seq), 2048 // head
            parts = [random(batch, heads, seq, head).requires_grad_() for _ in range(3)]
            flops = 4 * batch * heads * seq * seq * head
            for name, backend in BACKENDS.items():
                with sdpa_kernel(backend):
                    try:
                        out = F.scaled_dot_product_attention(*parts, is_causal=True)
                        grad = torch.randn_like(out)
                        forward = milliseconds(lambda: F.scaled_dot_product_attention(*parts, is_causal=True))
                        backward = milliseconds(
                            lambda: torch.autograd.grad(out, parts, grad, retain_graph=True))
                    except RuntimeError as error:
                        rows.append({'head': head, 'seq': seq, 'kernel': name, 'error': str(error)[:80]})
                        continue
                rows.append({'head': head, 'seq': seq, 'kernel': name,
                             'forward_tflops': flops / forward * 1e-9,
                             'backward_tflops': 2.5 * flops / backward * 1e-9})
    return rows


def kind_of(kernel):
    lower = kernel.lower()
    return next((kind for kind, words in KINDS if any(word in lower for word in words)), 'others')


def model_kernels(shape, batch, seq):
    """One forward and backward pass without checkpointing: kernels and their milliseconds by kind."""
    with torch.device('cuda'):
        model = peer_rank.Gpt2(shape, checkpoint_activations=False).to(torch.bfloat16)
        tokens = torch.randint(shape['vocabulary'], (batch, seq))

    def pass_once():
        model(tokens, tokens).backward()

    whole = milliseconds(pass_once, rounds=4)
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        pass_once()
        torch.cuda.synchronize()
    rows = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            row = rows.setdefault(kind_of(event.name), {'kernels': 0, 'ms': 0.0})
            row['kernels'] += 1
            row['ms'] += event.time_range.elapsed_us() / 1e3
    return {'batch': batch, 'seq': seq, 'pass_ms': whole,
            'kernels_ms': sum(row['ms'] for row in rows.values()),
            'kernels': sum(row['kernels'] for row in rows.values()), 'kinds': rows}


def parts(tiny):
    """(name, function) of each part: one that fails leaves the others standing."""
    if tiny:
        counts, widths, tokens, sequences, models = (512,), (256,), 512, (512,), (('nano', 2, 64),)
    else:
        counts, widths, tokens, sequences = (1024, 2048, 8192, 32768), (768, 1600, 3072, 4096), 8192, (1024, 2048, 8192)
        models = (('small', 8, 1024), ('medium', 8, 1024), ('1b', 4, 1024))
    yield 'memory', lambda: memory(2**20 if tiny else 2**30)
    yield 'small_operator_us', operators_us
    yield 'products', lambda: products(counts, widths)
    yield 'attention', lambda: attention(tokens, sequences)
    for name, batch, seq in models:
        yield f'model_{name}', lambda: model_kernels(peers.MODELS[name], batch, seq)


def main():
    torch.manual_seed(1)
    result = {'device': torch.cuda.get_device_name()}
    failed = False
    for name, measure in parts('--tiny' in sys.argv):
        try:
            result[name] = measure()
        except RuntimeError as error:
            result[name] = {'error': str(error)[:200]}
            failed = True
        torch.cuda.empty_cache()
        pathlib.Path(sys.argv[1]).write_text(json.dumps(result, indent=1), encoding='utf-8')
    print(json.dumps(result))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
