"""Hugging Face's Trainer: it saves and resumes through elixird, logs the update, and says what Elixir cannot follow."""

import functools
import os

from elixir import _checkpoints
from elixir._beside import load_beside, write_beside
from elixir._checkpoints import FOLDER, last_checkpoint
from elixir._load import Error
from elixir._optimizer import is_ours, ours
from elixir._options import NAMES

REFUSED = {  # TrainingArguments that Elixir cannot follow, and what to do
    'fp16': 'use bf16=True: Python cannot set the loss scale yet, which FP16 needs',
    'deepspeed': 'leave it out: Elixir takes its place',
    'fsdp': 'leave it out: Elixir shards the states of all ranks itself',
    'torch_compile': 'leave it out: compiled kernels read the memory of parameters that come and go',
    'auto_find_batch_size': 'leave it out, and set per_device_train_batch_size',
    'fp16_full_eval': 'leave it out: evaluation computes in the type that training has',
}


def check_arguments(args, optimizer):
    """Errors for what would not be followed, and takes what Trainer knows better."""
    for name, remedy in REFUSED.items():
        if getattr(args, name, None):
            raise Error(f'TrainingArguments({name}=...) with an elixir optimizer: {remedy}')
    if args.device.type != optimizer.device.type:
        raise Error(f'TrainingArguments puts batches on {args.device.type} (use_cpu), and the elixir optimizer computes on '
                    f'{optimizer.device.type}: build it with device="{args.device.type}"')
    if getattr(args, 'bf16', False):
        optimizer._take_bf16('bf16=True')
    if getattr(args, 'bf16_full_eval', False) and optimizer.dtype != NAMES['bf16']:
        raise Error('TrainingArguments(bf16_full_eval=True) with an elixir optimizer that computes in '
                    f'{optimizer.dtype}: leave it out, or train with bf16=True, and evaluation is in BF16, too')
    passes = args.gradient_accumulation_steps
    if optimizer._accumulate is None and not optimizer.started:
        optimizer._accumulate = passes
    elif optimizer.accumulate != passes:
        raise Error(f'TrainingArguments(gradient_accumulation_steps={passes}) and accumulate={optimizer.accumulate}: '
                    f'build the optimizer with accumulate={passes}, or leave accumulate out')
    if optimizer.max_grad_norm not in (None, args.max_grad_norm):
        raise Error(f'TrainingArguments(max_grad_norm={args.max_grad_norm}) and '
                    f'elixir.{optimizer._name}(max_grad_norm={optimizer.max_grad_norm}): give it once')


def make_callback(base):
    class ElixirCallback(base):
        """Saves and resumes through elixird, and adds what the update does to Trainer's logs."""

        saving = None  # (the save, its checkpoint, Trainer's removal of old ones or None)
        remove_old = None

        def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
            own = ours(optimizer)
            if own is None:
                return
            check_arguments(args, own)
            resume = own._resume
            own._resume = None
            if resume is None:
                if not own._plans_first_batch():
                    own.start()
                return
            folder = resume.get('folder') or os.path.join(args.output_dir, f'checkpoint-{state.global_step}')
            place = os.path.join(folder, FOLDER)
            if not os.path.isdir(place):
                last = _checkpoints.newest(os.path.dirname(folder))
                raise Error(f'{folder} was saved after step {resume["step"]} by an elixir optimizer, and has no folder '
                            f'{FOLDER}/ with its states: resume_from_checkpoint=True takes the newest whole checkpoint'
                            + (f', which is {last}' if last else ', of which there is none'))
            if own.started or not own._plans_first_batch():
                load_beside(own, folder, resume['step'])
            else:
                own._then = functools.partial(load_beside, own, folder, resume['step'])

        def on_save(self, args, state, control, optimizer=None, **kwargs):
            own = ours(optimizer)
            if own is None or args.save_only_model:
                return
            folder = os.path.join(args.output_dir, f'checkpoint-{state.global_step}')
            remove_old, self.remove_old = self.remove_old, None
            self.saving = (write_beside(own, folder, wait=False), folder, remove_old)

        def on_step_end(self, args, state, control, **kwargs):
            if self.saving is not None and self.saving[0].done():
                self.finish()

        def on_train_end(self, args, state, control, optimizer=None, **kwargs):
            self.finish()

        def finish(self):
            if self.saving is None:
                return
            saving, folder, remove_old = self.saving
            saving.wait()
            self.saving = None
            _checkpoints.end(folder)
            if remove_old is not None:
                remove_old()

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
        own = ours(self.optimizer)
        if own is not None:
            own._stub = None
        result = loads(self, checkpoint, *args, **kwargs)
        if own is not None and checkpoint is not None and own._stub is not None:
            # Also of the same step: Trainer has set the weights, which are the masters rounded.
            own._resume = {**own._stub, 'folder': os.path.abspath(checkpoint)}
        return result
    module.Trainer._load_optimizer_and_scheduler = load_optimizer_and_scheduler
    creates = module.Trainer.create_optimizer

    @functools.wraps(creates)
    def create_optimizer(self, model=None):
        given = self.optimizer_cls_and_kwargs
        if self.optimizer is None and given is not None and is_ours(given[0]):
            # Trainer makes the groups; an elixir optimizer needs the model beside them.
            others = {'model': self.model if model is None else model, **given[1]}
            with_model = functools.partialmethod(given[0].__init__, model=others.pop('model'))
            self.optimizer_cls_and_kwargs = type(given[0].__name__, (given[0],), {'__init__': with_model}), others
            try:
                return creates(self, model)
            finally:
                self.optimizer_cls_and_kwargs = given
        return creates(self, model)
    module.Trainer.create_optimizer = create_optimizer
    extend_saving(module, callback)
    extend_resuming(module)


def extend_saving(module, callback):
    """A killed run always finds a complete checkpoint: Trainer removes old ones when the new one is complete."""
    saves = module.Trainer._save_checkpoint
    place, name = (module, 'rotate_checkpoints') if hasattr(module, 'rotate_checkpoints') else (
        module.Trainer, '_rotate_checkpoints')
    removes = getattr(place, name)
    saving = []  # the callback of the Trainer that is in _save_checkpoint()

    @functools.wraps(removes)
    def rotate_checkpoints(*args, **kwargs):
        if not saving:
            return removes(*args, **kwargs)
        saving[-1].remove_old = functools.partial(removes, *args, **kwargs)
        return None
    setattr(place, name, rotate_checkpoints)

    @functools.wraps(saves)
    def save_checkpoint(self, model, trial, *args, **kwargs):
        own = ours(self.optimizer)
        mine = next((c for c in self.callback_handler.callbacks if isinstance(c, callback)), None)
        if own is None or mine is None or self.args.save_only_model:
            return saves(self, model, trial, *args, **kwargs)
        mine.finish()
        folder = os.path.join(self._get_output_dir(trial=trial), f'checkpoint-{self.state.global_step}')
        _checkpoints.begin(folder, own._native.rank())
        saving.append(mine)
        try:
            return saves(self, model, trial, *args, **kwargs)
        finally:
            saving.pop()
    module.Trainer._save_checkpoint = save_checkpoint


def extend_resuming(module):
    """Checkpoints whose states are not there yet do not count as the last one."""
    trains = module.Trainer.train

    @functools.wraps(trains)
    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        if resume_from_checkpoint is True and ours(self.optimizer) is not None:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f'No valid checkpoint found in output directory ({self.args.output_dir})')
        return trains(self, resume_from_checkpoint, *args, **kwargs)
    module.Trainer.train = train

    from transformers import trainer_utils  # noqa: PLC0415
    finds = trainer_utils.get_last_checkpoint

    @functools.wraps(finds)
    def get_last_checkpoint(folder):
        found = finds(folder)
        if found is None or not _checkpoints.is_unfinished(found):
            return found
        return last_checkpoint(folder)
    trainer_utils.get_last_checkpoint = get_last_checkpoint
    module.get_last_checkpoint = get_last_checkpoint


def extend_jit_checkpoint(module):
    """TrainingArguments(enable_jit_checkpoint=True): a checkpoint after SIGTERM, of which callbacks are not told."""
    executes = module.CheckpointManager.execute_jit_checkpoint

    @functools.wraps(executes)
    def execute_jit_checkpoint(self):
        result = executes(self)
        trainer = self.trainer
        if ours(trainer.optimizer) is not None:
            trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        return result
    module.CheckpointManager.execute_jit_checkpoint = execute_jit_checkpoint
    waits = module.JITCheckpointCallback.on_pre_optimizer_step

    @functools.wraps(waits)
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if self.trainer is None or ours(self.trainer.optimizer) is None:
            return waits(self, args, state, control, **kwargs)
        return None  # between backward() and step() nothing is saved: on_step_end() comes next
    module.JITCheckpointCallback.on_pre_optimizer_step = on_pre_optimizer_step
