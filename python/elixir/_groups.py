"""Parameters and groups as a program gives them to an optimizer."""

import math

import torch

from elixir._load import Error


def groups_of(params, model):
    """(model, torch's groups, names of pairs) of what a program gives."""
    if isinstance(params, torch.nn.Module):
        if model is not None and model is not params:
            raise Error('params is a module and model= another one: give one of them')
        return params, [p for p in params.parameters() if p.requires_grad], None
    listed = list(params)
    if listed and isinstance(listed[0], tuple):
        named = [(name, parameter) for name, parameter in listed]
        return model, [p for _, p in named if p.requires_grad], None if model is not None else named
    if model is None:
        raise Error('elixir.AdamW of parameters without names: give it the module, model= beside the parameters, or '
                    'model.named_parameters()')
    return model, listed, None


def hyper_of(group):
    beta1, beta2 = group['betas']
    lr = float(group['lr'])
    if not math.isfinite(lr) or lr < 0:
        raise Error(f'lr = {lr} is out of range: it must be at least 0')
    return lr, float(group['weight_decay']), (float(beta1), float(beta2)), float(group['eps'])


def some(names):
    return ', '.join(f"'{name}'" for name in names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')


def check_quantised(model):
    for name, parameter in model.named_parameters():
        kind = type(parameter)
        where = f'{kind.__module__}.{kind.__name__}'
        if where.startswith(('bitsandbytes.', 'torchao.')) or hasattr(parameter, 'quant_state'):
            raise Error(f"parameter '{name}' is a {where}, a quantised weight, which Elixir does not hold yet: load the "
                        'model in 16 bits (without quantization_config=); adapters over a BF16 base train as they are')
