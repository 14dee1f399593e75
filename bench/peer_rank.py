"""One rank of one system that bench/peers.py compares Elixir with; only that script starts it.

The model is models/gpt2.cpp written again in Python: the same operators in the same order, the same
names, the same first values. Data are those of models/token_data.cpp. What a system adds is a class
with a constructor, which builds it around the model, and step(inputs, targets), which trains.
"""

import collections
import concurrent.futures
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16}
WORD = (1 << 64) - 1


def mix_bits(x):
    """models/mix_bits.h"""
    x = (x + 0x9e3779b97f4a7c15) & WORD
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & WORD
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & WORD
    return x ^ (x >> 31)


class Projection(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        rows = torch.addmm(self.bias, x.reshape(-1, x.size(2)), self.weight)
        return rows.view(x.size(0), x.size(1), -1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Projection(width, 3 * width)
        self.c_proj = Projection(width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = (part.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(attended.transpose(1, 2).reshape(batch, seq, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = Projection(width, 4 * width)
        self.c_proj = Projection(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate='tanh'))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, shape, checkpoint_activations):
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.wte = nn.Embedding(shape['vocabulary'], shape['width'])
        self.wpe = nn.Embedding(shape['context'], shape['width'])
        self.h = nn.ModuleList(Block(shape['width'], shape['heads']) for _ in range(shape['layers']))
        self.ln_f = nn.LayerNorm(shape['width'])

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint_activations else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


class FirstValues:
    """What models/gpt2.cpp gives parameter `index`: each has a generator of its own."""

    def __init__(self, layers, seed):
        self.residual_scale = 1 / math.sqrt(2 * layers)
        self.first_seed = mix_bits(seed)

    def draw(self, index, name, shape):
        if name.endswith('bias'):
            return torch.zeros(shape)
        if 'ln_' in name:
            return torch.ones(shape)
        scale = self.residual_scale if name.endswith('c_proj.weight') else 1
        generator = torch.Generator().manual_seed((self.first_seed + index) & WORD)
        return torch.empty(shape).normal_(0, 0.02 * scale, generator=generator)

    def of(self, model, threads):
        """(parameter, its first values), in the model's order; drawn by threads, a few ahead."""
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            waiting = collections.deque()
            for index, (name, parameter) in enumerate(model.named_parameters()):
                shape = getattr(parameter, 'ds_shape', parameter.shape)
                waiting.append((parameter, pool.submit(self.draw, index, name, shape)))
                if len(waiting) > threads:
                    ready, values = waiting.popleft()
                    yield ready, values.result()
            for ready, values in waiting:
                yield ready, values.result()


class Tokens:
    """Bytes of a text; rows as models/token_data.cpp chooses them."""

    def __init__(self, path, seq, seed):
        with open(path, 'rb') as file:
            self.text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        self.seq = seq
        self.seed = seed

    def batch(self, step, first_row, rows):
        by_step = mix_bits((mix_bits(self.seed) + step) & WORD)
        starts = [mix_bits((by_step + row) & WORD) % (self.text.numel() - self.seq)
                  for row in range(first_row, first_row + rows)]
        both = torch.stack([self.text[start:start + self.seq + 1] for start in starts]).long()
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def meta_model(job):
    with torch.device('meta'):
        return Gpt2(job['shape'], job['checkpoint_activations'])


def adamw_settings(job):
    return {'lr': job['lr'], 'betas': tuple(job['betas']), 'eps': job['eps'],
            'weight_decay': job['weight_decay']}


class PlainTorch:
    """torch.optim.AdamW, fused. In BF16 on FP32 masters, with a cast of all gradients before it and
    of all weights after it."""

    def __init__(self, job, values, device):
        self.dtype = DTYPES[job['dtype']]
        self.model = meta_model(job).to_empty(device='cpu')
        with torch.no_grad():
            for parameter, first in values.of(self.model, job['threads']):
                parameter.copy_(first)
        self.model.to(device)
        self.masters = list(self.model.parameters())
        if self.dtype != torch.float32:
            self.masters = [nn.Parameter(master.detach().clone()) for master in self.masters]
            self.model.to(self.dtype)
        self.adamw = torch.optim.AdamW(self.masters, fused=True, **adamw_settings(job))

    def step(self, inputs, targets):
        loss = self.model(inputs, targets)
        loss.backward()
        if self.dtype == torch.float32:
            self.adamw.step()
            self.adamw.zero_grad()
            return loss
        parameters = list(self.model.parameters())
        with torch.no_grad():
            for master, parameter in zip(self.masters, parameters):
                master.grad = parameter.grad.float()
                parameter.grad = None
            self.adamw.step()
            self.adamw.zero_grad()
            torch._foreach_copy_(parameters, self.masters)
        return loss

    def states(self):
        return states_of(self.adamw)


class Fsdp2:
    """torch.distributed.fsdp.fully_shard a block, masters and fused AdamW on the CPU."""

    def __init__(self, job, values, device):
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
        from torch.distributed.fsdp import fully_shard
        # On the CPU there is nothing to offload to: its shards lie in host memory as they are.
        offload = CPUOffloadPolicy(pin_memory=True) if device.type == 'cuda' else OffloadPolicy()
        dtype = DTYPES[job['dtype']]
        how = {'mesh': dist.device_mesh.init_device_mesh(device.type, (job['ranks'],)),
               'mp_policy': MixedPrecisionPolicy(param_dtype=dtype) if dtype != torch.float32
               else MixedPrecisionPolicy(), 'offload_policy': offload}
        self.model = meta_model(job)
        for block in self.model.h:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        self.model.to_empty(device='cpu')
        with torch.no_grad():
            for parameter, first in values.of(self.model, job['threads']):
                own = first.chunk(job['ranks'])
                if dist.get_rank() < len(own):  # a short parameter has no shard on the last ranks
                    parameter.to_local().copy_(own[dist.get_rank()])
        self.adamw = torch.optim.AdamW(self.model.parameters(), fused=True, **adamw_settings(job))

    def step(self, inputs, targets):
        loss = self.model(inputs, targets)
        loss.backward()
        self.adamw.step()
        self.adamw.zero_grad()
        return loss

    def states(self):
        return states_of(self.adamw)


class Zero:
    """DeepSpeed's ZeRO stage 2 or 3, its optimizer offloaded to its CPU Adam."""

    def __init__(self, job, values, device):
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        config = zero_config(job, device)
        dtype = DTYPES[job['dtype']]
        stage3 = config['zero_optimization']['stage'] == 3
        if stage3:
            # No dtype= here: DeepSpeed would take it for FP16 or BF16 whatever it is.
            with deepspeed.zero.Init(config_dict_or_path=config):
                model = Gpt2(job['shape'], job['checkpoint_activations'])
        else:
            model = meta_model(job).to_empty(device='cpu')
        with torch.no_grad():
            for parameter, first in values.of(model, job['threads']):
                with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0, enabled=stage3):
                    if not stage3 or dist.get_rank() == 0:
                        parameter.data.copy_(first)
        adam = DeepSpeedCPUAdam(model.parameters(), adamw_mode=True, **adamw_settings(job))
        self.engine, self.optimizer, _, _ = deepspeed.initialize(model=model, optimizer=adam,
                                                                 config=config)
        used = {parameter.dtype for parameter in self.engine.module.parameters()}
        assert used == {dtype}, f'DeepSpeed computes in {used}, not in {dtype}'

    def step(self, inputs, targets):
        loss = self.engine(inputs, targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss

    def states(self):
        return states_of(self.optimizer.optimizer)


def zero_config(job, device):
    cuda = device.type == 'cuda'
    zero = {
        'stage': {'zero2': 2, 'zero3': 3}[job['system']],
        'offload_optimizer': {'device': 'cpu', 'pin_memory': cuda},
        'contiguous_gradients': True,
        'overlap_comm': cuda,  # streams, which a CPU has none of
    }
    zero.update(job.get('zero', {}))
    if zero['stage'] == 3 and cuda:
        zero['offload_param'] = {'device': 'cpu', 'pin_memory': True}
    return {
        'train_batch_size': job['batch'] * job['ranks'],
        'train_micro_batch_size_per_gpu': job['batch'],
        'gradient_clipping': 0.0,
        'bf16': {'enabled': job['dtype'] == 'bf16'},
        'zero_optimization': zero,
        'steps_per_print': 1 << 30,
        'wall_clock_breakdown': False,
    }


SYSTEMS = {'torch': PlainTorch, 'fsdp2': Fsdp2, 'zero2': Zero, 'zero3': Zero}


def states_of(optimizer):
    return [tensor for state in optimizer.state.values() for key, tensor in state.items()
            if key in ('exp_avg', 'exp_avg_sq')]


def open_device(job):
    if job['device'] == 'cpu':
        return torch.device('cpu')
    device = torch.device('cuda', int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if job['gpu_memory_bytes']:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1, job['gpu_memory_bytes'] / total), device)
    return device


def join_ranks(job, device):
    backend = 'nccl' if device.type == 'cuda' else 'gloo'
    if job['system'].startswith('zero'):
        import deepspeed
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    elif job['system'] == 'fsdp2':
        dist.init_process_group(backend)


def check_states(states, device):
    """Adam's states are what every system must keep alike: FP32, on the host, and of this run."""
    local = [state.to_local() if hasattr(state, 'to_local') else state for state in states]
    assert local, 'the optimizer has no states'
    for state in local:
        assert state.dtype == torch.float32, f'Adam keeps states in {state.dtype}'
        assert state.device == device, f'Adam keeps states on {state.device}'
    assert any(state.abs().sum() > 0 for state in local), "Adam's states are all zero"


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job['threads'])
    device = open_device(job)
    join_ranks(job, device)
    rank = int(os.environ['RANK'])
    system = SYSTEMS[job['system']](job, FirstValues(job['shape']['layers'], job['seed']), device)
    tokens = Tokens(job['data'], job['seq'], job['seed'])
    step_ms, losses = [], []
    end = time.perf_counter()
    for step in range(job['steps']):
        inputs, targets = tokens.batch(step, rank * job['batch'], job['batch'])
        loss = system.step(inputs.to(device), targets.to(device))
        losses.append(loss.item())
        begin, end = end, time.perf_counter()
        step_ms.append(1e3 * (end - begin))
        print(f'step {step + 1}/{job["steps"]} loss {losses[-1]:.4f}', file=sys.stderr, flush=True)
    check_states(system.states(), device if job['system'] == 'torch' else torch.device('cpu'))
    report = {'step_ms': step_ms, 'losses': losses}
    if device.type == 'cuda':
        report['device_bytes'] = torch.cuda.max_memory_reserved(device)
        cap = job['gpu_memory_bytes']
        assert not cap or report['device_bytes'] <= cap, \
            f'{report["device_bytes"]} bytes of device memory, more than the cap of {cap}'
    with open(f'{job["report"]}.{rank}', 'w', encoding='utf-8') as file:
        json.dump(report, file)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    # What is measured is written; ZeRO-3's threads end an interpreter's exit by SIGABRT now and then.
    os._exit(0)


if __name__ == '__main__':
    main()
