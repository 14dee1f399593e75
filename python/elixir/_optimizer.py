"""The optimizers, which replace torch.optim.AdamW and torch.optim.Adam."""

import atexit
import math
import weakref

import torch

from elixir import _held, _model, _options
from elixir._load import Error, native
from elixir._norm import LazyNorm

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
    """Ends sessions while the interpreter can still run what they wait for."""
    for optimizer in list(_alive):
        optimizer._native_or_none = None


class Optimizer(torch.optim.Optimizer):
    """What AdamW and Adam share; elixird keeps their states."""

    _make = None          # the binding's class
    _name = 'Optimizer'

    def __init__(self, params, defaults, *, model, dtype, device, accumulate, max_grad_norm, plan, options):
        _options.check_names(options)
        model, groups, names = _groups_of(params, model)
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._given_names = names            # of pairs; None: the model's
        self._native_or_none = None
        self._starting = False
        self._adding = True                  # super() adds the groups
        super().__init__(groups, defaults)
        self._adding = False
        self._asked_dtype = _options.dtype_of(dtype)
        self._device = torch.device(_options.device_of(device))
        self._accumulate = accumulate
        self.max_grad_norm = max_grad_norm   # of steps without a call of clip_grad_norm_; None: not clipped
        self._asked_plan = plan
        self._options = dict(options)
        self._step_clip = None               # (max_norm or None,) that clip_grad_norm_ has asked for
        self._clip_set = None
        self._seen_changes = -1
        self._resume = None                  # {"step", "folder"} of a loaded stub that is of another step
        self._loading = _model.Loading()
        self._pushed = []
        self._plan = None
        self._check_all_given()
        if model is not None:
            _of_model[model] = self
            _model.adopt(model, self)
            self._at_forward = model.register_forward_pre_hook(_start_at_forward, prepend=True, with_kwargs=True)
        _alive.add(self)

    # ---- start ----

    @property
    def started(self):
        """Whether the parameters are with elixird already."""
        return self._native_or_none is not None

    @property
    def dtype(self):
        """The type in which the model computes: what was asked for, else that of the parameters."""
        return self._asked_dtype or self._built_type()

    @property
    def device(self):
        """Where inputs must lie, a torch.device."""
        return self._native_or_none.device() if self.started else self._device

    @property
    def accumulate(self):
        """Backward passes of a step for which memory is planned; any number may come."""
        return self._accumulate or 1

    @property
    def plan(self):
        """The layout that the planner chose (elixir.Plan), or None where it was not asked."""
        return self._plan

    def start(self, batch=None):
        """Hands the parameters over to elixird. The first forward pass of the model does this by itself.

        Call it when you call parts of the model instead of the model, or want to see errors early.

        Args:
            batch: (args, kwargs) of a forward pass, for the plan on a GPU; None: nothing is planned.
        """
        if self.started or self._starting:
            return
        self._starting = True
        try:
            self._start(batch)
        finally:
            self._starting = False

    def _start(self, batch, load_from='', load_states=True):
        model = self._model()
        self._check_all_given()
        named, buffers = self._named(model)
        options = self._native_options()
        folder = getattr(model, '_elixir_load_from', None)  # elixir.hf.from_pretrained
        if load_from or folder:
            options.update(load_from=load_from or folder, load_states=load_states and bool(load_from))
        self._plan = self._chosen_plan(model, batch, options)
        if self._plan is not None:
            options['plan'] = self._plan._native
        first, *rest = self.param_groups
        self._native_or_none = self._make(
            named, buffers, _hyper_of(first), [(list(group['params']), _hyper_of(group)) for group in rest], options)
        self._pushed = [_hyper_of(group) for group in self.param_groups]
        self._clip_set = self.max_grad_norm
        for name, parameter in named:
            _held.hold(parameter, self, name)
        if model is not None:
            _model.adopt(model, self)
            self._at_forward.remove()
        self._seen_changes = _changes

    def _native_options(self):
        options = {name: value for name, value in self._options.items() if name != 'gpu_memory'}
        options.update(dtype=_options.TYPES[self.dtype], device=str(self._device), accumulate=self.accumulate,
                       clip_norm=self.max_grad_norm, grad_norm=self._options.get('update') != 'immediate')
        if 'gpu_memory' in self._options:
            options['device_memory_bytes'] = _options.bytes_of(self._options['gpu_memory'], 'gpu_memory')
        return options

    def _chosen_plan(self, model, batch, options):
        from elixir import _plan
        if self._asked_plan is None or self._asked_plan is False:
            return None
        if self._asked_plan != 'auto':
            return _plan.read(self._asked_plan)
        scarce = self._device.type == 'cuda' or options.get('device_memory_bytes')
        if not scarce or batch is None or model is None or _options.LAYOUT & set(self._options):
            return None
        return _plan.of_batch(model, self._named(model), batch, options)

    def _named(self, model):
        if self._given_names is not None:
            return list(self._given_names), []
        if model is None:
            raise Error('the model of this optimizer is gone: keep a reference to it as long as you train it')
        return list(model.named_parameters()), list(model.named_buffers())

    def _built_type(self):
        types = {parameter.dtype for group in self.param_groups for parameter in group['params']}
        if len(types) == 1:
            return next(iter(types))
        listed = ', '.join(sorted(str(dtype) for dtype in types))
        raise Error(f'the trained parameters have several types ({listed}): cast the model to one before '
                    '(model.to(torch.bfloat16)), or leave some out (leave_out=[names])')

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
            raise Error(f'{_some(stray)} of the model {"is" if len(stray) == 1 else "are"} in no group: give all '
                        'trained parameters to the optimizer, freeze them (requires_grad_(False)), or name them in '
                        'leave_out=')
        _check_quantised(model)

    @property
    def _native(self):
        self.start()
        return self._native_or_none

    # ---- steps ----

    @torch.no_grad()
    def step(self, closure=None):
        """Ends the step and returns at once; elixird updates in the background.

        Args:
            closure: computes the loss again and returns it, as with torch.optim.

        Returns:
            The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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

    def zero_grad(self, set_to_none=True):
        """Drops the gradients since the last step; step() does this, too. set_to_none changes nothing."""
        if self.started:
            self._native.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def _push(self):
        """What has changed in param_groups since the last step, and the step's clipping."""
        for number, group in enumerate(self.param_groups):
            hyper = _hyper_of(group)
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
                raise Error(f'{_some(new)} came into the model after the optimizer and would not be trained '
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

    def outcome(self, step=None):
        """The last step's (or a given one's, of the last two) result; waits until all ranks have made it.

        Returns:
            {"step": its number, "mean_loss": over ranks, of closures' losses, "grad_norm": L2 norm of all
            gradients before clipping, "skipped": True if a gradient was not finite}
        """
        number, mean_loss, grad_norm, skipped = self._native.outcome(step)
        return {'step': number, 'mean_loss': mean_loss, 'grad_norm': grad_norm, 'skipped': skipped}

    def synchronize(self):
        """Waits until the last step's update is done."""
        self._native.synchronize()

    def stats(self):
        """What the last step did on this rank: gathers and hits of the rCache, bytes moved, times in ms."""
        return self._native.stats()

    # ---- groups ----

    def add_param_group(self, param_group):
        """Gives parameters of the first group hyperparameters of their own, with their states."""
        if self._adding:
            return super().add_param_group(param_group)
        tensors = param_group['params']
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        own = {id(parameter) for parameter in self.param_groups[0]['params']}
        if any(id(tensor) not in own for tensor in tensors):
            raise Error('add_param_group with a tensor that is not in the first group: an elixir optimizer takes all of '
                        'its parameters when it is built')
        group = {**self.defaults, **param_group, 'params': tensors}
        if self.started:
            self._native.add_group(tensors, _hyper_of(group))
            self._pushed.append(_hyper_of(group))
        moved = {id(tensor) for tensor in tensors}
        self.param_groups[0]['params'] = [p for p in self.param_groups[0]['params'] if id(p) not in moved]
        self.param_groups.append(group)

    # ---- values and states ----

    def value(self, parameter):
        """A copy of a parameter after the last step: its shape, the compute type, on the CPU. Any rank alone."""
        return self._native.value(parameter)

    def gradient(self, parameter):
        """The parameter's gradient of this step, FP32, with keep_gradients=True; None if there is none."""
        return self._native.gradient(parameter)

    def set_parameters(self, values):
        """Sets parameters by name, {name: tensor of its shape}, on all ranks; rank 0's values count."""
        self._native.set_parameters(list(values.items()))

    def full_state_dict(self):
        """torch's state of each parameter, by name: step, exp_avg, exp_avg_sq, and master, its FP32 values.

        All ranks call it; it takes 12 bytes a parameter in this process.
        """
        return self._native.state_dict()

    def state_dict(self):
        """The groups, and where the states are: 1.5 KB. elixird has the states; elixir.save() writes them."""
        groups = []
        for group in self.param_groups:
            groups.append({**{key: value for key, value in group.items() if key != 'params'},
                           'params': list(range(len(group['params'])))})
        steps = self._native_or_none.steps() if self.started else 0
        return {'state': {}, 'param_groups': groups, 'elixir': {'step': steps}}

    def load_state_dict(self, state_dict):
        """Takes hyperparameters. The states of another step come from elixir.load(), or Trainer's checkpoint."""
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
        self._resume = ours if ours['step'] != now else None

    def release(self):
        """Ends training: parameters become ordinary CPU tensors with the values of their FP32 masters."""
        if self.started:
            self._native.release()
            self._native_or_none = None
        model = self._model()
        if model is not None:
            self._at_forward.remove()
            _of_model.pop(model, None)
        _held.let_go(self)

    def _copies_of(self, state):
        """The copies that a state_dict() has so far, by parameter: tied names share one."""
        found = getattr(self, '_copies', None)
        if found is None or found[0]() is not state:
            try:
                found = (weakref.ref(state), {})
            except TypeError:  # a plain dict
                found = (lambda state=state: state, {})
            self._copies = found
        return found[1]

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

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, model=None, dtype=None,
                 device='auto', accumulate=None, max_grad_norm=None, plan='auto', **options):
        super().__init__(params, {'lr': lr, 'betas': betas, 'eps': eps, 'weight_decay': weight_decay}, model=model,
                         dtype=dtype, device=device, accumulate=accumulate, max_grad_norm=max_grad_norm, plan=plan,
                         options=options)


class Adam(Optimizer):
    """torch.optim.Adam: the decay is added to the gradient. The arguments are those of AdamW."""

    _make = native.Adam
    _name = 'Adam'

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, *, model=None, dtype=None,
                 device='auto', accumulate=None, max_grad_norm=None, plan='auto', **options):
        super().__init__(params, {'lr': lr, 'betas': betas, 'eps': eps, 'weight_decay': weight_decay}, model=model,
                         dtype=dtype, device=device, accumulate=accumulate, max_grad_norm=max_grad_norm, plan=plan,
                         options=options)


def _start_at_forward(model, args, kwargs):
    optimizer = _held.of_module(model)
    if optimizer is not None:
        optimizer.start((args, kwargs))


def _groups_of(params, model):
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


def _hyper_of(group):
    beta1, beta2 = group['betas']
    lr = float(group['lr'])
    if not math.isfinite(lr) or lr < 0:
        raise Error(f'lr = {lr} is out of range: it must be at least 0')
    return lr, float(group['weight_decay']), (float(beta1), float(beta2)), float(group['eps'])


def _some(names):
    return ', '.join(f"'{name}'" for name in names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')


def _check_quantised(model):
    for name, parameter in model.named_parameters():
        kind = type(parameter)
        where = f'{kind.__module__}.{kind.__name__}'
        if where.startswith(('bitsandbytes.', 'torchao.')) or hasattr(parameter, 'quant_state'):
            raise Error(f"parameter '{name}' is a {where}, a quantised weight, which Elixir does not hold yet: load the "
                        'model in 16 bits (without quantization_config=); adapters over a BF16 base train as they are')
