"""Hugging Face: models by their folder, and what Trainer and accelerate need of an optimizer.

Nothing here is called by a program that only trains: importing elixir makes Trainer save and resume through
elixird, log the update, and refuse arguments that Elixir cannot follow.
"""

import functools
import importlib.abc
import importlib.util
import json
import logging
import os
import shutil
import sys

import torch

from elixir import _model, _optimizer, _options, _saving
from elixir._load import Error

FOLDER = 'elixir'  # in a checkpoint of Trainer or accelerate
logger = logging.getLogger('elixir')


def from_pretrained(model_class, folder, **kwargs):
    """A model of a local Hugging Face folder whose weights never are in this process as a whole.

    The model is built under elixir.init(). The optimizer that is built on it takes the values from the folder's
    safetensors files, one chunk at a time, on the node of rank 0.

    Args:
        model_class: such as transformers.AutoModelForCausalLM or LlamaForCausalLM.
        folder: a folder with config.json and safetensors files, with the model's own names.
        kwargs: for the configuration, such as attn_implementation.

    Returns:
        The model. Where the folder's names differ from the model's (fused experts, a base model's folder),
        model_class.from_pretrained(folder) is returned, and a warning says why.
    """
    import transformers  # noqa: PLC0415
    folder = os.path.abspath(os.fspath(folder))
    config = transformers.AutoConfig.from_pretrained(folder, **kwargs)
    with _model.init():
        build = getattr(model_class, 'from_config', None) or model_class._from_config
        model = build(config)
    stored = names_in(folder)
    tied = set(getattr(model, '_tied_weights_keys', None) or ())
    lacks = [name for name, _ in model.named_parameters() if name not in stored and name not in tied]
    if lacks:
        logger.warning("%s has no %s%s under the model's name: taking %s.from_pretrained, which holds the whole model "
                       'in this process', folder, lacks[0], f' and {len(lacks) - 1} others' if lacks[1:] else '',
                       model_class.__name__)
        return model_class.from_pretrained(folder, **kwargs)
    model.__dict__['_elixir_load_from'] = folder
    return model


def names_in(folder):
    """The names of the tensors in the folder's safetensors files."""
    index = os.path.join(folder, 'model.safetensors.index.json')
    if os.path.exists(index):
        with open(index, encoding='utf-8') as file:
            return set(json.load(file)['weight_map'])
    path = os.path.join(folder, 'model.safetensors')
    if not os.path.exists(path):
        raise Error(f'{folder} has no model.safetensors: Elixir reads weights from safetensors files')
    with open(path, 'rb') as file:
        length = int.from_bytes(file.read(8), 'little')
        return set(json.loads(file.read(length))) - {'__metadata__'}


def ours(optimizer):
    """The elixir optimizer in accelerate's wrapper, or None."""
    optimizer = getattr(optimizer, 'optimizer', optimizer)
    return optimizer if isinstance(optimizer, _optimizer.Optimizer) else None


# ---- Trainer ----

REFUSED = {  # TrainingArguments that Elixir cannot follow, and what to do
    'fp16': 'use bf16=True: Python cannot set the loss scale yet, which FP16 needs',
    'deepspeed': 'leave it out: Elixir takes its place',
    'fsdp': 'leave it out: Elixir shards the states of all ranks itself',
    'torch_compile': 'leave it out: compiled kernels read the memory of parameters that come and go',
    'auto_find_batch_size': 'leave it out, and set per_device_train_batch_size',
}


def check_arguments(args, optimizer):
    """Errors for what would not be followed, and takes what Trainer knows better."""
    for name, remedy in REFUSED.items():
        if getattr(args, name, None):
            raise Error(f'TrainingArguments({name}=...) with an elixir optimizer: {remedy}')
    if getattr(args, 'bf16', False):
        take_bf16(optimizer)
    passes = args.gradient_accumulation_steps
    if optimizer._accumulate is None and not optimizer.started:
        optimizer._accumulate = passes
    elif optimizer.accumulate != passes:
        raise Error(f'TrainingArguments(gradient_accumulation_steps={passes}) and accumulate={optimizer.accumulate}: '
                    f'build the optimizer with accumulate={passes}, or leave accumulate out')
    if optimizer.max_grad_norm not in (None, args.max_grad_norm):
        raise Error(f'TrainingArguments(max_grad_norm={args.max_grad_norm}) and '
                    f'elixir.{optimizer._name}(max_grad_norm={optimizer.max_grad_norm}): give it once')


def take_bf16(optimizer):
    dtype = optimizer.dtype
    if dtype == _options.NAMES['bf16']:
        return
    if optimizer._asked_dtype is not None or optimizer.started:
        raise Error(f'TrainingArguments(bf16=True) and an elixir optimizer that computes in {dtype}: build it with '
                    'dtype="bf16", or leave bf16 out')
    optimizer._asked_dtype = _options.NAMES['bf16']
    logger.warning('bf16=True means dtype="bf16" of the elixir optimizer: the model computes in BF16 over FP32 masters')


def make_room(own, place):
    """A run that was resumed from an earlier checkpoint writes later ones again, as Trainer does with its files."""
    if own._native.rank() == 0 and os.path.isdir(place):
        shutil.rmtree(place)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()  # no rank finds the old one


def make_callback(base):
    class ElixirCallback(base):
        """Saves and resumes through elixird, and adds what the update does to Trainer's logs."""

        saving = None

        def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
            own = ours(optimizer)
            if own is None:
                return
            check_arguments(args, own)
            resume = own._resume
            own._resume = None
            if resume is None:
                own.start()
                return
            folder = resume.get('folder') or os.path.join(args.output_dir, f'checkpoint-{state.global_step}')
            place = os.path.join(folder, FOLDER)
            if not os.path.isdir(place):
                raise Error(f'{folder} was saved after step {resume["step"]} by an elixir optimizer, and has no folder '
                            f'{FOLDER}/ with its states: resume from a whole checkpoint, or leave '
                            'resume_from_checkpoint out')
            _saving.load(own, place)

        def on_save(self, args, state, control, optimizer=None, **kwargs):
            own = ours(optimizer)
            if own is None or args.save_only_model:
                return
            self.finish()
            place = os.path.join(args.output_dir, f'checkpoint-{state.global_step}', FOLDER)
            make_room(own, place)
            self.saving = _saving.save(own, place, wait=False)

        def on_train_end(self, args, state, control, optimizer=None, **kwargs):
            self.finish()

        def finish(self):
            saving, self.saving = self.saving, None
            if saving is not None:
                saving.wait()

        def on_log(self, args, state, control, logs=None, optimizer=None, **kwargs):
            own = ours(optimizer)
            if own is None or logs is None or 'loss' not in logs or not own.started:
                return
            told = told_of(own.stats())
            logs.update(told)
            if state.log_history:
                state.log_history[-1].update(told)
    return ElixirCallback


def told_of(stats):
    reads = stats['gathers'] + stats['hits']
    told = {'elixir_update_gparam_s': round(stats['update_numel_per_s'] / 1e9, 3), 'elixir_binding': stats['binding']}
    if reads:
        told['elixir_hit_rate'] = round(stats['hits'] / reads, 3)
    return told


def extend_trainer(module):
    """Called with transformers.trainer when a program imports it."""
    import transformers  # noqa: PLC0415
    callback = make_callback(transformers.TrainerCallback)
    module.DEFAULT_CALLBACKS.append(callback)
    loads = module.Trainer._load_optimizer_and_scheduler

    @functools.wraps(loads)
    def load_optimizer_and_scheduler(self, checkpoint, *args, **kwargs):
        result = loads(self, checkpoint, *args, **kwargs)
        own = ours(self.optimizer)
        if own is not None and checkpoint is not None and own._resume is not None:
            own._resume = {**own._resume, 'folder': os.path.abspath(checkpoint)}
        return result
    module.Trainer._load_optimizer_and_scheduler = load_optimizer_and_scheduler


# ---- accelerate ----

def extend_accelerate(module):
    """Called with accelerate.accelerator when a program imports it."""
    prepare = module.Accelerator.prepare

    @functools.wraps(prepare)
    def prepare_all(self, *objects, **kwargs):
        result = prepare(self, *objects, **kwargs)
        for item in objects:
            own = ours(item)
            if own is not None and not getattr(self, '_elixir_hooked', False):
                self._elixir_hooked = True
                if getattr(self, 'scaler', None) is not None:
                    raise Error('Accelerator(mixed_precision="fp16") with an elixir optimizer: use "bf16" or "no"')
                if self.mixed_precision == 'bf16':
                    take_bf16(own)
                self.register_save_state_pre_hook(functools.partial(save_state, own))
                self.register_load_state_pre_hook(functools.partial(load_state, own))
        return result
    module.Accelerator.prepare = prepare_all


def save_state(own, _models, _weights, output_dir):
    place = os.path.join(output_dir, FOLDER)
    make_room(own, place)
    _saving.save(own, place)


def load_state(own, _models, input_dir):
    place = os.path.join(input_dir, FOLDER)
    if not os.path.isdir(place):
        raise Error(f'{input_dir} has no folder {FOLDER}/: it was not saved with an elixir optimizer')
    _saving.load(own, place)


# ---- whoever comes first ----

EXTENSIONS = {'transformers.trainer': extend_trainer, 'accelerate.accelerator': extend_accelerate}


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
