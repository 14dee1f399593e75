"""Wrappers of models and optimizers that read or replace parameters: errors that name what to do."""

import functools

import torch

from elixir import _held
from elixir._load import Error

# Classes whose constructor takes a module first, and why a held one does not go in.
OF_MODULES = {
    'DistributedDataParallel': 'Elixir sums the gradients of all ranks itself; use the model without it',
    'DataParallel': 'Trainer wraps a model so in one process that sees several GPUs. Start one rank per GPU with '
                    '`torchrun --nproc-per-node GPUS`, or let the process see one GPU (CUDA_VISIBLE_DEVICES=0)',
    'FullyShardedDataParallel': 'Elixir shards the states of all ranks itself; use the model without it',
    'fully_shard': 'Elixir shards the states of all ranks itself; use the model without it',
    'torch.compile': 'compiled kernels read the memory of parameters that come and go; train the model uncompiled',
    'Module.compile': 'compiled kernels read the memory of parameters that come and go; train the model uncompiled',
}
SCALER = ('GradScaler with an elixir optimizer: its gradients have gone to elixird before a scaler could read them. Use '
          'dtype="bf16", which needs no scaler')


def checked(name, makes, module_at=0):
    """A constructor or function with a module as argument number `module_at`."""
    @functools.wraps(makes)
    def check(*args, **kwargs):
        module = args[module_at] if len(args) > module_at else kwargs.get('module', kwargs.get('model'))
        if isinstance(module, torch.nn.Module) and _held.any_module_in(module):
            raise Error(f'{name} of a model that an elixir optimizer holds: {OF_MODULES[name]}')
        return makes(*args, **kwargs)
    return check


def check_unwrapped(model):
    """Of a module that an optimizer is built over: it is none of these already."""
    for module in model.modules():
        name = type(module).__name__
        if name == 'OptimizedModule' or module._compiled_call_impl is not None:
            name = 'torch.compile'
        if name in OF_MODULES:
            raise Error(f'the model is wrapped by {name}: {OF_MODULES[name]}')


def reject_scaler(method):
    @functools.wraps(method)
    def check(self, optimizer, *args, **kwargs):
        from elixir._optimizer import ours  # noqa: PLC0415  (it imports this)
        if ours(optimizer) is not None and self.is_enabled():
            raise Error(SCALER)
        return method(self, optimizer, *args, **kwargs)
    return check


def patch_torch():
    parallel = torch.nn.parallel
    for wrapper in (parallel.DistributedDataParallel, parallel.DataParallel):
        wrapper.__init__ = checked(wrapper.__name__, wrapper.__init__, module_at=1)
    torch.compile = checked('torch.compile', torch.compile)
    torch.nn.Module.compile = checked('Module.compile', torch.nn.Module.compile)
    for name in ('step', 'unscale_'):
        setattr(torch.amp.GradScaler, name, reject_scaler(getattr(torch.amp.GradScaler, name)))


def extend_fsdp(module):
    """Called with torch.distributed.fsdp when a program imports it."""
    wrapper = module.FullyShardedDataParallel
    wrapper.__init__ = checked(wrapper.__name__, wrapper.__init__, module_at=1)
    module.fully_shard = checked('fully_shard', module.fully_shard)


patch_torch()
