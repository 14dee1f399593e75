"""The optimizers, which replace torch.optim.AdamW and torch.optim.Adam."""

import atexit
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, Unpack

import torch

from elixir import _checkpoint, _groups, _held, _model, _options, _plan, _wrappers
from elixir._load import Error, native
from elixir._norm import LazyNorm

Params: TypeAlias = torch.nn.Module | Iterable[torch.Tensor | dict[str, Any] | tuple[str, torch.Tensor]]

logger = logging.getLogger('elixir')
_alive = weakref.WeakSet()
_of_model = weakref.WeakKeyDictionary()  # a model keeps its optimizer alive; the optimizer does not keep it
_changes = 0                             # modules and parameters that were registered anywhere


def _count_change(*_):
    global _changes
    _changes += 1


torch.nn.modules.module.register_module_parameter_registration_hook(_count_change)
torch.nn.modules.module.register_module_module_registration_hook(_count_change)


@atexit.register
def _end():
    """Ends sessions while the interpreter can still run what they wait for.

    A program that ends with an error does not wait for its last step, and other ranks hear that this one failed.
    """
    failing = getattr(sys, 'last_value', None) is not None and not hasattr(sys, 'ps1')
    for optimizer in list(_alive):
        if failing:
            native.drop_failing(optimizer)
        else:
            optimizer._native_or_none = None


class Optimizer(torch.optim.Optimizer):
    """What AdamW and Adam share; elixird keeps their states."""

    _make = None          # the binding's class
    _name = 'Optimizer'

    def __init__(self, params, defaults, *, model, dtype, device, accumulate, max_grad_norm, plan, options):
        _options.check_names(options)
        model, groups, names = _groups.groups_of(params, model)
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._given_names = names            # of pairs; None: the model's
        self._native_or_none = None
        self._starting = False
        self._adding = True                  # super() adds the groups
        super().__init__(groups or [{'params': []}], defaults)  # a frozen model runs, and nothing of it is trained
        self._adding = False
        self._asked_dtype = _options.dtype_of(dtype)
        self._device = torch.device(_options.device_of(device))
        self._accumulate = accumulate
        self.max_grad_norm = max_grad_norm   # of steps without a call of clip_grad_norm_; None: not clipped
        self._asked_plan = plan
        self._options = dict(options)
        self._has_regions = 'activations' in options  # transformers' layers are regions of elixir.checkpoint()
        self._step_clip = None               # (max_norm or None,) that clip_grad_norm_ has asked for
        self._clip_set = None
        self._seen_changes = -1
        self._stub = None                    # {"step"} that load_state_dict() has brought
        self._resume = None                  # the same if it is of another step, and "folder", for Trainer
        self._then = None                    # what Trainer does once the first forward pass has started this
        self._loading = _model.Loading()
        self._values_at_start = {}           # of parameters without memory, by name
        self._pushed = []
        self._plan = None
        self._copies = (lambda: None), None  # of the last state_dict()
        self._check_all_given()
        if model is not None:
            _wrappers.check_unwrapped(model)
            _of_model[model] = self
            _model.adopt(model, self)
            self._at_forward = model.register_forward_pre_hook(_start_at_forward, prepend=True, with_kwargs=True)
        _alive.add(self)

    # ---- start ----

    @property
    def started(self) -> bool:
        """Whether the parameters are with elixird already."""
        return self._native_or_none is not None

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the model computes: what was asked for, else that of the parameters."""
        return self._asked_dtype or self._built_type()

    @property
    def device(self) -> torch.device:
        """Where inputs must lie, a torch.device."""
        return self._native_or_none.device() if self.started else self._device

    @property
    def accumulate(self) -> int:
        """Backward passes of a step for which memory is planned; any number may come."""
        return self._accumulate or 1

    @property
    def plan(self) -> _plan.Plan | None:
        """The layout that the planner chose (elixir.Plan), or None: nothing was scarce, or no plan was made."""
        return self._plan

    def start(self, batch: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> None:
        """Hands the parameters over to elixird. The first forward pass of the model does this by itself.

        Call it when you call parts of the model instead of the model, or want to see errors early.

        Args:
            batch: (args, kwargs) of a forward pass, for the plan on a GPU; None: nothing is planned.

        Raises:
            elixir.Error: the states do not fit, a parameter cannot be held, or elixird does not start.
        """
        if self.started or self._starting:
            return
        self._starting = True
        try:
            self._start(batch)
            if self._then is not None:
                self._then()
        finally:
            self._starting = False
            self._then = None

    def _start(self, batch, load_from='', load_states=True):
        model = self._model()
        self._check_all_given()
        named, buffers = self._named(model)
        self._warn_of_casts(named)
        options = self._native_options()
        folder = getattr(model, '_elixir_load_from', None)  # elixir.hf.from_pretrained
        if load_from or folder:
            options.update(load_from=load_from or folder, load_states=load_states and bool(load_from))
        self._plan = self._chosen_plan(model, batch, options)
        if self._plan is not None:
            options['plan'] = self._plan._native
        first, *rest = self.param_groups
        self._native_or_none = self._make(
            named, buffers, _groups.hyper_of(first), [(list(group['params']), _groups.hyper_of(group)) for group in rest], options)
        self._pushed = [_groups.hyper_of(group) for group in self.param_groups]
        self._clip_set = self.max_grad_norm
        for name, parameter in named:
            _held.hold(parameter, self, name)
        if model is not None:
            _model.adopt(model, self)
            self._at_forward.remove()
        self._seen_changes = _changes
        values, self._values_at_start = self._values_at_start, {}
        if values and not load_from:
            self._native_or_none.set_parameters(list(values.items()))

    def _warn_of_casts(self, named):
        """PEFT makes adapters in FP32 over a BF16 base, which would become FP32, too."""
        left_out = self._options.get('leave_out') or ()
        cast = {parameter.dtype for name, parameter in named
                if parameter.is_floating_point() and name not in left_out} - {self.dtype}
        if self._asked_dtype is None and cast:
            logger.warning('parameters that are not trained are cast from %s to %s, the type of the trained ones: '
                           'dtype="bf16" computes in BF16 over FP32 masters', ', '.join(map(str, cast)), self.dtype)

    def _native_options(self):
        options = {name: value for name, value in self._options.items() if name != 'gpu_memory'}
        if self._options.get('activations', 'auto') == 'auto' and _checkpoint.offloads(self._model()):
            # transformers was asked for it. A given plan says itself what regions do.
            options['activations'] = 'host' if self._asked_plan in (None, False, 'auto') else 'auto'
            self._has_regions = True
        options.update(dtype=_options.name_of(self.dtype), device=str(self._device), accumulate=self.accumulate,
                       clip_norm=self.max_grad_norm, grad_norm=self._options.get('update') != 'immediate')
        if 'gpu_memory' in self._options:
            options['device_memory_bytes'] = _options.bytes_of(self._options['gpu_memory'], 'gpu_memory')
        return options

    def _chosen_plan(self, model, batch, options):
        if self._asked_plan is None or self._asked_plan is False:
            return None
        if self._asked_plan != 'auto':
            return _plan.read(self._asked_plan)
        if batch is None or model is None or not self._trains() or not self._plans_first_batch():
            return None
        try:
            return _plan.of_batch(model, self._named(model), batch, options)
        except Error as failure:
            if options.get('activations') != 'host' or 'activations' in self._options:
                raise
            logger.warning('activations stay on the device, though offload=True asks for host memory: %s', failure)
            options['activations'] = 'auto'
            return self._chosen_plan(model, batch, options)
        except Exception as failure:  # of the model, which runs without values
            logger.warning('no plan: the model does not run without values (%s: %s). The layout is the default one; give '
                           'rcache_blocks=, or a file to plan=', type(failure).__name__, str(failure).split('\n')[0])
            return None

    def _plans_first_batch(self):
        """Whether the first forward pass asks the planner, so that start() must wait for it."""
        scarce = self._device.type == 'cuda' or 'gpu_memory' in self._options
        return self._asked_plan == 'auto' and scarce and not _options.LAYOUT & set(self._options)

    def _take_bf16(self, asked):
        """What `asked`, an argument of another library, means for this optimizer."""
        bf16 = _options.NAMES['bf16']
        if self.dtype == bf16:
            return
        if self._asked_dtype is not None or self.started:
            raise Error(f'{asked} and an elixir optimizer that computes in {self.dtype}: build it with dtype="bf16", or leave '
                        'it out')
        self._asked_dtype = bf16
        logger.warning('%s means dtype="bf16" of the elixir optimizer: the model computes in BF16 over FP32 masters', asked)

    def _named(self, model):
        if self._given_names is not None:
            return list(self._given_names), []
        if model is None:
            raise Error('the model of this optimizer is gone: keep a reference to it as long as you train it')
        return list(model.named_parameters()), list(model.named_buffers())

    def _built_type(self):
        trained = [parameter for group in self.param_groups for parameter in group['params']]
        types = {parameter.dtype for parameter in trained or [p for _, p in self._named(self._model())[0]]}
        if len(types) == 1:
            return next(iter(types))
        listed = ', '.join(sorted(str(dtype) for dtype in types))
        raise Error(f'the trained parameters have several types ({listed}): cast the model to one before '
                    '(model.to(torch.bfloat16)), or leave some out (leave_out=[names])')

    def _trains(self):
        """False for a model in which no parameter requires gradients."""
        return any(group['params'] for group in self.param_groups)

    def _trained(self, model):
        """(name, parameter) of those of the model that this optimizer must train."""
        left_out = self._options.get('leave_out') or ()
        return [(name, parameter) for name, parameter in model.named_parameters()
                if parameter.requires_grad and name not in left_out]

    def _check_all_given(self):
        """Every trained parameter of the model is in a group: what is in none would silently stay as it is."""
        model = self._model()
        if model is None:
            return
        given = {id(parameter) for group in self.param_groups for parameter in group['params']}
        stray = [name for name, parameter in self._trained(model) if id(parameter) not in given]
        if stray:
            raise Error(f'{_groups.some(stray)} of the model {"is" if len(stray) == 1 else "are"} in no group: give all '
                        'trained parameters to the optimizer, freeze them (requires_grad_(False)), or name them in '
                        'leave_out=')
        _groups.check_quantised(model)

    @property
    def _native(self):
        self.start()
        return self._native_or_none

    # ---- steps ----

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Ends the step and returns at once; elixird updates in the background.

        Args:
            closure: computes the loss again and returns it, as with torch.optim.

        Returns:
            The closure's loss, or None.

        Raises:
            elixir.Error: new parameters came into the model, a gradient did not go to elixird, or elixird or a rank
                is lost.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._trains():
            raise Error('step() of an optimizer over a model in which no parameter requires gradients: call '
                        'requires_grad_(True) on those to train, before you build it')
        if not self.started:
            self._refuse_early_step()
        self._check_changes()
        self._push()
        self._native.step(float(loss) if loss is not None else None)
        self._step_clip = None
        return loss

    def _refuse_early_step(self):
        had = [p for group in self.param_groups for p in group['params'] if p.grad is not None]
        if had:
            raise Error('step() after a backward pass that did not go through the model: call optimizer.start() before '
                        'you use parts of the model by themselves')

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step; step() does this, too.

        Args:
            set_to_none: changes nothing; torch's optimizers have it.

        Raises:
            elixir.Error: on the next step(), if the gradients of some parameters were dropped by hand.
        """
        if self.started:
            self._native.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def _push(self):
        """What has changed in param_groups since the last step, and the step's clipping."""
        for number, group in enumerate(self.param_groups):
            hyper = _groups.hyper_of(group)
            if hyper != self._pushed[number]:
                self._native.set_group(number, hyper)
                self._pushed[number] = hyper
        clip = self._step_clip[0] if self._step_clip is not None else self.max_grad_norm
        if clip != self._clip_set:
            self._native.set_clip_norm(clip)
            self._clip_set = clip

    def _check_changes(self):
        if self._seen_changes == _changes:
            return
        model = self._model()
        if model is not None:
            new = [name for name, p in self._trained(model) if _held.of_parameter(p)[0] is not self]
            if new:
                raise Error(f'{_groups.some(new)} came into the model after the optimizer and would not be trained '
                            '(resize_token_embeddings, add_adapter): change the model first, then build elixir.'
                            f'{self._name}')
        self._seen_changes = _changes

    def _clip(self, max_norm, parameters):
        own = [p for group in self.param_groups for p in group['params']]
        missing = {id(p) for p in own} - {id(p) for p in parameters}
        if missing:
            raise Error(f'clip_grad_norm_ of {len(own) - len(missing)} of the {len(own)} trained parameters: Elixir '
                        'clips all of them together; pass model.parameters()')
        self._step_clip = (max_norm,)
        step = self._native.last_step() + 1

        def ask():
            if self._native.last_step() < step:
                raise Error('the norm of this step\'s gradients is known after optimizer.step(): read it then')
            return self._native.outcome(step)[2]
        return LazyNorm(ask)

    def outcome(self, step: int | None = None) -> dict[str, Any]:
        """The result of a step; waits until all ranks have made it.

        Args:
            step: one of the last two steps, counted from 1; None: the last.

        Returns:
            {"step": its number, "mean_loss": the mean over ranks of the closures' losses (NaN without a closure),
            "grad_norm": the L2 norm of all gradients before clipping, "skipped": True if a gradient was not finite}

        Raises:
            elixir.Error: there was no such step, or it is too old.
        """
        number, mean_loss, grad_norm, skipped = self._native.outcome(step)
        return {'step': number, 'mean_loss': mean_loss, 'grad_norm': grad_norm, 'skipped': skipped}

    def synchronize(self) -> None:
        """Waits until the last step's update is done, for example before you measure time."""
        self._native.synchronize()

    def stats(self) -> dict[str, Any]:
        """What the last step did on this rank.

        Returns:
            {"step", "gathers", "hits" and "evictions" of the rCache, "h2d_bytes", "d2h_bytes" and "d2d_bytes" moved,
            "update_numel_per_s": parameters that elixird updates per second, "recomputed_regions": checkpointed regions
            that ran again in backward, "activation_d2h_bytes" and "activation_h2d_bytes": activations that went to host
            memory and back, which "d2h_bytes" and "h2d_bytes" include, "step_ms", "compute_ms", "exposed_ms":
            milliseconds in which operators waited, "update_ms", "binding": what takes longest}
        """
        return self._native.stats()

    # ---- groups ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Gives parameters of the first group hyperparameters of their own; they keep their states.

        Args:
            param_group: {"params": a tensor or several, "lr": ..., ...}; what it leaves out has the defaults.

        Raises:
            elixir.Error: a tensor is not in the first group. All parameters are given when the optimizer is built.
        """
        if self._adding:
            super().add_param_group(param_group)
            return
        tensors = param_group['params']
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        own = {id(parameter) for parameter in self.param_groups[0]['params']}
        if any(id(tensor) not in own for tensor in tensors):
            raise Error('add_param_group with a tensor that is not in the first group: an elixir optimizer takes all of '
                        'its parameters when it is built')
        group = {**self.defaults, **param_group, 'params': tensors}
        if self.started:
            self._native.add_group(tensors, _groups.hyper_of(group))
            self._pushed.append(_groups.hyper_of(group))
        moved = {id(tensor) for tensor in tensors}
        self.param_groups[0]['params'] = [p for p in self.param_groups[0]['params'] if id(p) not in moved]
        self.param_groups.append(group)

    # ---- values and states ----

    def value(self, parameter: torch.Tensor) -> torch.Tensor:
        """A copy of a parameter after the last step. Any rank may call it alone.

        Args:
            parameter: one of this optimizer's.

        Returns:
            A tensor of its shape, in the compute type, on the CPU.

        Raises:
            elixir.Error: it is not a parameter of this optimizer, or backward() has run and step() has not. Also on
                several nodes, and with the collective exchange where its states are on GPUs.
        """
        return self._native.value(parameter)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """A parameter's gradient of this step as backward has summed it on this rank, before clipping.

        Args:
            parameter: one of this optimizer's, which was built with keep_gradients=True.

        Returns:
            A tensor of its shape, FP32, on the device; None if there is no gradient. After step() it is the last
            step's, until the next backward() or zero_grad().

        Raises:
            elixir.Error: gradients are not kept, or it is not a parameter of this optimizer.
        """
        return self._native.gradient(parameter)

    def set_parameters(self, values: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters between steps; moments stay. All ranks call it, and rank 0's values count.

        Args:
            values: {name: tensor of the parameter's shape}, of any floating-point type.

        Raises:
            elixir.Error: there is no such name, or a shape differs; nothing is changed then.
        """
        self._native.set_parameters(list(values.items()))

    def full_state_dict(self) -> dict[str, dict[str, Any]]:
        """All states in this process, 12 bytes a parameter. All ranks call it.

        Returns:
            {name: {"step": a number, "exp_avg", "exp_avg_sq" and "master": FP32 tensors of the parameter's shape on
            the CPU}}, as torch.optim.AdamW has them; the master is the parameter's FP32 value
        """
        return self._native.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """The groups and the step, in 1.5 KB. elixird has the states; elixir.save() writes them.

        Returns:
            {"state": {}, "param_groups": the groups without their parameters, "elixir": {"step": ...}}
        """
        groups = []
        for group in self.param_groups:
            # No numbers of parameters: torch.optim.AdamW would take the groups and begin without moments, in silence.
            groups.append({**group, 'params': []})
        steps = self._native_or_none.steps() if self.started else 0
        return {'state': {}, 'param_groups': groups, 'elixir': {'step': steps}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes hyperparameters. The states of another step come from elixir.load(), or from Trainer's checkpoint.

        Args:
            state_dict: what state_dict() has returned, of an optimizer with as many groups.

        Raises:
            elixir.Error: it is of another optimizer, or the number of groups differs.
        """
        ours = state_dict.get('elixir')
        if ours is None:
            raise Error('load_state_dict() of an optimizer that is not Elixir\'s: elixir-convert turns a file of '
                        'torch.save(optimizer.state_dict()) into a folder for elixir.load()')
        if len(state_dict['param_groups']) != len(self.param_groups):
            raise Error(f'load_state_dict() of {len(state_dict["param_groups"])} groups into '
                        f'{len(self.param_groups)}: build the optimizer with the same groups')
        for group, stored in zip(self.param_groups, state_dict['param_groups']):
            group.update({key: value for key, value in stored.items() if key != 'params'})
        now = self._native_or_none.steps() if self.started else 0
        self._stub = ours
        self._resume = ours if ours['step'] != now else None

    def release(self) -> None:
        """Ends training and keeps the model: parameters become ordinary tensors on the CPU again.

        They have the type with which the model was built, and the values of the FP32 masters. All ranks call it, and
        each needs memory for the whole model.
        """
        if self.started:
            self._native.release()
            self._native_or_none = None
        model = self._model()
        if model is not None:
            self._at_forward.remove()
            _of_model.pop(model, None)
        _held.let_go(self)

    def _copies_of(self, state):
        """The copies that a state_dict() has so far, by parameter: tied names share one. Nothing here keeps them."""
        of_state, copies = self._copies
        if of_state() is not state:
            copies = weakref.WeakValueDictionary()
            try:
                of_state = weakref.ref(state)
            except TypeError:  # a plain dict, which has no weak references
                of_state = functools.partial(lambda kept: kept, state)
            self._copies = of_state, copies
        return copies

    def __getstate__(self):
        raise TypeError('an elixir optimizer is not pickled: elixird has its states; use elixir.save(optimizer, folder)')

    def __deepcopy__(self, memo):
        raise TypeError('an elixir optimizer is not copied: elixird has its states')


class AdamW(Optimizer):
    """torch.optim.AdamW whose states, and all parameters but a few, live outside the device.

    Args:
        params: a module; or groups as torch.optim takes them, with `model`; or (name, parameter) pairs.
        lr, betas, eps, weight_decay: as in torch.optim.AdamW.
        model: the module whose parameters these are, where `params` is not a module.
        dtype: the type in which the model computes, torch.bfloat16 or "bf16"; masters are FP32. Default: the
            type of the parameters.
        device: "cpu", "cuda" or "cuda:1". Default: CUDA where torch finds it; the local rank is the index.
        accumulate: backward passes of a step, for which memory is planned. Default 1.
        max_grad_norm: clips the gradients of steps in which clip_grad_norm_ is not called.
        plan: "auto": on a GPU the planner chooses the layout at the first forward pass; a file of
            `elixirctl plan --json`; None: nothing is planned.
        options: further options by their names in elixir::Options, such as rcache_blocks, gpu_state_share,
            exchange ("host", "collective"), leave_out=[names], gpu_memory="24GiB".

    Raises:
        elixir.Error: what does not fit or is not possible, with the parameter and the remedy.
    """

    _make = native.AdamW
    _name = 'AdamW'

    def __init__(self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, model: torch.nn.Module | None = None,
                 dtype: torch.dtype | str | None = None, device: torch.device | str = 'auto',
                 accumulate: int | None = None, max_grad_norm: float | None = None,
                 plan: str | os.PathLike[str] | None = 'auto', **options: Unpack[_options.Options]) -> None:
        super().__init__(params, {'lr': lr, 'betas': betas, 'eps': eps, 'weight_decay': weight_decay}, model=model,
                         dtype=dtype, device=device, accumulate=accumulate, max_grad_norm=max_grad_norm, plan=plan,
                         options=options)


class Adam(Optimizer):
    """torch.optim.Adam: the decay is added to the gradient. The arguments are those of AdamW, and so are the methods.

    weight_decay is 0 by default.
    """

    _make = native.Adam
    _name = 'Adam'

    def __init__(self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, *, model: torch.nn.Module | None = None,
                 dtype: torch.dtype | str | None = None, device: torch.device | str = 'auto',
                 accumulate: int | None = None, max_grad_norm: float | None = None,
                 plan: str | os.PathLike[str] | None = 'auto', **options: Unpack[_options.Options]) -> None:
        super().__init__(params, {'lr': lr, 'betas': betas, 'eps': eps, 'weight_decay': weight_decay}, model=model,
                         dtype=dtype, device=device, accumulate=accumulate, max_grad_norm=max_grad_norm, plan=plan,
                         options=options)


def _start_at_forward(model, args, kwargs):
    optimizer = _held.of_module(model)
    if optimizer is not None:
        optimizer.start((args, kwargs))


def ours(optimizer):
    """The elixir optimizer in accelerate's wrapper, or None."""
    optimizer = getattr(optimizer, 'optimizer', optimizer)
    return optimizer if isinstance(optimizer, Optimizer) else None


def is_ours(optimizer_class):
    return isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)
