"""Operators of bitsandbytes and torchvision, TorchScript, torch.func and autocast on tensors in chunks: the same
kernels run as on ordinary tensors, and give the same bits. foreign_libraries_test.py starts it.

    foreign_libraries.py CHUNKS_LIBRARY before|after
"""

import os
import sys
import threading

import torch

torch.manual_seed(7)


def load_libraries():
    import bitsandbytes.functional  # noqa: F401, PLC0415  (the order is what is tested)
    import torchvision.ops  # noqa: F401, PLC0415


class Kernels:
    """The files of bitsandbytes whose kernels ran: one per back end."""

    def __init__(self):
        self.ran = set()

    def see(self, frame, event, _argument):
        name = frame.f_code.co_filename
        if event == 'call' and f'{os.sep}backends{os.sep}' in name and os.path.basename(name) == 'ops.py':
            self.ran.add('/'.join(name.split(os.sep)[-2:]))

    def __enter__(self):
        sys.setprofile(self.see)
        threading.setprofile(self.see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)


def four_bits(quant_type):
    def run(weight):
        packed, absmax = torch.ops.bitsandbytes.quantize_4bit(weight, 64, quant_type, torch.uint8)
        return torch.ops.bitsandbytes.dequantize_4bit(packed, absmax, 64, quant_type, weight.shape, torch.float32)
    return run


def packed_four_bits(run):
    """Of a weight that lies in a chunk in four bits, as the base of QLoRA does."""
    def with_state(weight, keep):
        packed, absmax = torch.ops.bitsandbytes.quantize_4bit(weight, 64, 'nf4', torch.uint8)
        return run(keep(packed), keep(absmax), weight)
    return with_state


def eight_bits(weight, keep):
    activations = torch.linspace(-1, 1, 3 * weight.shape[1]).view(3, -1).half()
    a, a_stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(activations)
    b, b_stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(keep(weight.half()))
    product = torch.ops.bitsandbytes.int8_linear_matmul(a, keep(b))
    return torch.ops.bitsandbytes.int8_mm_dequant(product, a_stats, keep(b_stats))


def blockwise(weight, keep):
    code = torch.linspace(-1, 1, 256)
    codes, absmax = torch.ops.bitsandbytes.quantize_blockwise(keep(weight), code, 64)
    return torch.ops.bitsandbytes.dequantize_blockwise(keep(codes), keep(absmax), keep(code), 64, torch.float32)


def matmul_four_bits(weight, keep):
    """Forward and backward of bitsandbytes' own autograd function."""
    import bitsandbytes.functional as functional  # noqa: PLC0415
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type='nf4')
    state.absmax, state.code = keep(state.absmax), keep(state.code)
    inputs = torch.linspace(-1, 1, 3 * weight.shape[1]).view(3, -1).requires_grad_()
    import bitsandbytes  # noqa: PLC0415
    bitsandbytes.matmul_4bit(inputs, keep(packed).t(), quant_state=state).square().sum().backward()
    return inputs.grad


def region_align(weight, keep):
    import torchvision.ops  # noqa: PLC0415
    images = keep(weight.view(1, 1, *weight.shape)).requires_grad_()
    boxes = keep(torch.tensor([[0.0, 1, 2, 30, 40], [0, 5, 5, 20, 21]]))
    torchvision.ops.roi_align(images, boxes, 4).square().sum().backward()
    return images.grad


def suppression(weight, keep):
    import torchvision.ops  # noqa: PLC0415
    corners = weight[:, :2].abs()
    boxes = torch.cat([corners, corners + 1], 1)
    return torchvision.ops.nms(keep(boxes), keep(weight[:, 3]), 0.3)


def deformed(weight, keep):
    import torchvision.ops  # noqa: PLC0415
    images, filters = weight.view(1, 4, 16, -1), keep(weight[:6, :36].reshape(6, 4, 3, 3)).requires_grad_()
    offsets = keep(torch.linspace(-1, 1, 18 * 14 * (images.shape[3] - 2)).view(1, 18, 14, -1))
    torchvision.ops.deform_conv2d(images, offsets, filters).square().sum().backward()
    return filters.grad


@torch.jit.script
def scripted(weight, inputs):
    hidden = torch.nn.functional.linear(inputs, weight)
    for _ in range(2):
        hidden = torch.relu(hidden) + hidden
    return hidden.sum(0)


def torchscript(weight, keep):
    inputs = torch.linspace(-1, 1, 3 * weight.shape[1]).view(3, -1)
    parameter = keep(weight).requires_grad_()
    outputs = [scripted(parameter, inputs) for _ in range(4)]  # its optimised graph runs from the third on
    sum(outputs).sum().backward()
    return torch.cat([outputs[-1].detach(), parameter.grad.flatten()])


def function_gradients(weight, keep):
    inputs = torch.linspace(-1, 1, 3 * weight.shape[1]).view(3, -1)
    parameter = keep(weight)
    per_sample = torch.func.vmap(torch.func.grad(lambda w, x: (w @ x).square().sum()), (None, 0))(parameter, inputs)
    return torch.cat([per_sample.flatten(), torch.func.vmap(lambda x: parameter @ x)(inputs).flatten()])


def autocast(weight, keep):
    inputs = torch.linspace(-1, 1, 3 * weight.shape[1]).view(3, -1)
    parameter = keep(weight).requires_grad_()
    with torch.autocast('cpu', torch.bfloat16):
        output = torch.nn.functional.linear(inputs, parameter)
    assert output.dtype == torch.bfloat16
    output.float().square().sum().backward()
    return parameter.grad


def alone(run):
    return lambda weight, keep: run(keep(weight))


CASES = {
    'nf4': alone(four_bits('nf4')),
    'fp4': alone(four_bits('fp4')),
    'packed nf4': packed_four_bits(lambda packed, absmax, weight: torch.ops.bitsandbytes.dequantize_4bit(
        packed, absmax, 64, 'nf4', weight.shape, torch.bfloat16)),
    'gemm of packed nf4': packed_four_bits(lambda packed, absmax, weight: torch.ops.bitsandbytes.gemm_4bit(
        torch.ones(2, weight.shape[1]), packed, weight.shape, absmax, 64, 'nf4')),
    'int8': eight_bits, 'blockwise': blockwise, 'matmul_4bit': matmul_four_bits,
    'roi_align': region_align, 'nms': suppression, 'deform_conv2d': deformed,
    'TorchScript': torchscript, 'torch.func': function_gradients, 'autocast': autocast,
}


def main():
    chunks, order = sys.argv[1:]
    if order == 'after':
        torch.ops.load_library(chunks)
        torch.ops.elixir_chunks.in_chunk(torch.zeros(1))  # Elixir intercepts from here on
    load_libraries()
    if order == 'before':
        torch.ops.load_library(chunks)
    weight = torch.randn(64, 64)
    for name, run in CASES.items():
        with Kernels() as expected:
            ordinary = run(weight, lambda tensor: tensor.detach().clone())
        before = torch.ops.elixir_chunks.acquired()
        with Kernels() as seen:
            in_chunks = run(weight, torch.ops.elixir_chunks.in_chunk)
        gathered = torch.ops.elixir_chunks.acquired() - before
        equal = torch.equal(ordinary, in_chunks)
        print(f'{name}: kernels={",".join(sorted(seen.ran)) or "compiled"} gathered={gathered}')
        if not equal or seen.ran != expected.ran or gathered == 0:
            sys.exit(f'{name}: equal bits: {equal}; kernels of ordinary tensors: {sorted(expected.ran)}')


main()
