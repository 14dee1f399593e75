"""Extends other libraries, whether a program imports them before elixir or after it."""

import functools
import importlib.abc
import importlib.util
import sys

from elixir import _accelerate, _checkpoint, _trainer, _wrappers
from elixir._load import Error
from elixir._optimizer import ours


def extend_distributed_checkpoint(module):
    """torch makes states that it does not find by a step with gradients of zeros, which would be a step of ours."""
    makes = module._init_optim_state

    @functools.wraps(makes)
    def init_optim_state(optimizer, *args, **kwargs):
        if ours(optimizer) is not None:
            raise Error('torch.distributed.checkpoint of an elixir optimizer: elixird has its states; '
                        'elixir.save(optimizer, folder) writes them for any number of ranks')
        return makes(optimizer, *args, **kwargs)
    module._init_optim_state = init_optim_state


EXTENSIONS = {'transformers.trainer': _trainer.extend_trainer, 'transformers.trainer_jit_checkpoint': _trainer.extend_jit_checkpoint,
              'transformers.modeling_utils': _checkpoint.extend_models,
              'accelerate.accelerator': _accelerate.extend_accelerate, 'torch.distributed.fsdp': _wrappers.extend_fsdp,
              'torch.distributed.checkpoint.state_dict': extend_distributed_checkpoint}


class Extender(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Extends these modules when a program imports them after elixir."""

    def __init__(self):
        self.loaders = {}

    def find_spec(self, name, path=None, target=None):
        if name not in EXTENSIONS or name in self.loaders:
            return None
        self.loaders[name] = None  # the others look for it
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        self.loaders[name] = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self.loaders[spec.name].create_module(spec)

    def exec_module(self, module):
        self.loaders[module.__name__].exec_module(module)
        EXTENSIONS[module.__name__](module)

    def __getattr__(self, name):  # get_source() and others, of the one loader that asks
        for loader in self.__dict__.get('loaders', {}).values():
            if loader is not None and hasattr(loader, name):
                return getattr(loader, name)
        raise AttributeError(name)


def extend():
    for name, extension in EXTENSIONS.items():
        if name in sys.modules:
            extension(sys.modules[name])
    sys.meta_path.insert(0, Extender())


extend()
