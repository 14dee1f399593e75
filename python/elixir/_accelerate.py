"""accelerate: prepare(), save_state() and load_state(), and the settings that Elixir cannot follow."""

import functools
import os

from elixir import _checkpoints, _saving
from elixir._beside import write_beside
from elixir._checkpoints import FOLDER
from elixir._load import Error
from elixir._optimizer import ours
from elixir._trainer import REFUSED


def check_accelerator(accelerator):
    """Errors for settings that Elixir cannot follow, also those of `accelerate config` and the environment."""
    kind = accelerator.distributed_type.value
    if kind in ('FSDP', 'DEEPSPEED', 'MEGATRON_LM'):
        raise Error(f'accelerate is set to {kind}, and Elixir takes its place: leave out its plugin, or choose no '
                    f'{kind} in `accelerate config`')
    if accelerator.mixed_precision not in ('no', 'bf16'):
        raise Error(f'Accelerator(mixed_precision="{accelerator.mixed_precision}") with an elixir optimizer: use '
                    '"bf16" or "no"')
    dynamo = getattr(accelerator.state, 'dynamo_plugin', None)
    if dynamo is not None and dynamo.backend.value not in ('NO', 'no'):
        raise Error(f'the model would be compiled (torch_compile, dynamo_backend="{dynamo.backend.value.lower()}"): '
                    f'{REFUSED["torch_compile"]}')
    parallel = getattr(accelerator, 'parallelism_config', None)
    if parallel is not None and parallel.total_size > parallel.dp_replicate_size:
        raise Error('parallelism_config with an elixir optimizer: leave it out; ranks are data parallel, and Elixir '
                    'shards the states')


def extend_accelerate(module):
    """Called with accelerate.accelerator when a program imports it.

    Its hooks come before it writes and reads weights, and elixird's part comes after them: the hooks note the folder.
    """
    prepare, prepare_optimizer = module.Accelerator.prepare, module.Accelerator.prepare_optimizer
    saves, loads = module.Accelerator.save_state, module.Accelerator.load_state

    @functools.wraps(prepare)
    def prepare_all(self, *objects, **kwargs):
        if any(ours(item) is not None for item in objects):
            check_accelerator(self)  # before accelerate wraps anything
        return prepare(self, *objects, **kwargs)

    @functools.wraps(prepare_optimizer)
    def prepare_one(self, optimizer, *args, **kwargs):  # prepare() calls it, and so may a program
        own = ours(optimizer)
        if own is not None and getattr(self, '_elixir', None) is None:
            check_accelerator(self)
            self._elixir = own
            if self.mixed_precision == 'bf16':
                own._take_bf16('bf16=True (mixed_precision="bf16")')
            self.register_save_state_pre_hook(functools.partial(note_saved, self))
            self.register_load_state_pre_hook(functools.partial(note_loaded, self))
        return prepare_optimizer(self, optimizer, *args, **kwargs)

    @functools.wraps(saves)
    def save_state(self, *args, **kwargs):
        result = saves(self, *args, **kwargs)
        if getattr(self, '_elixir', None) is not None:
            if self._elixir._native.rank() == 0:
                _checkpoints.make_room(self._elixir_folder)
            _checkpoints.meet()  # no rank finds the old one
            write_beside(self._elixir, self._elixir_folder)
        return result

    @functools.wraps(loads)
    def load_state(self, *args, **kwargs):
        result = loads(self, *args, **kwargs)
        if getattr(self, '_elixir', None) is not None:
            self._elixir._resume = None
            _saving.load(self._elixir, os.path.join(self._elixir_folder, FOLDER))
        return result
    module.Accelerator.prepare, module.Accelerator.prepare_optimizer = prepare_all, prepare_one
    module.Accelerator.save_state, module.Accelerator.load_state = save_state, load_state


def note_saved(accelerator, _models, _weights, output_dir):
    accelerator._elixir_folder = output_dir


def note_loaded(accelerator, _models, input_dir):
    if not os.path.isdir(os.path.join(input_dir, FOLDER)):
        raise Error(f'{input_dir} has no folder {FOLDER}/: it was not saved with an elixir optimizer')
    accelerator._elixir_folder = input_dir
