"""What a model becomes when an optimizer holds it, and how it is built and read."""

import functools
import math
from collections.abc import Iterable

import torch

from elixir import _held
from elixir._load import Error, native


def init() -> native.Init:
    """Builds modules without memory: parameters remember how they are initialised.

        with elixir.init():
            model = LlamaForCausalLM(config)
        optimizer = elixir.AdamW(model, lr=1e-4)

    Inside, torch's factory functions make tensors on the meta device. The optimizer then draws the values one
    chunk at a time, so a model larger than the memory can start. Values depend on torch.manual_seed() and on the
    order of the constructors. They are Elixir's own draws, not those of the same seed without init().

    Returns:
        A context manager, for one `with` block.
    """
    return native.Init()


def materialise(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a tensor made under init() stands for.

    Args:
        tensor: a parameter or buffer, before an optimizer holds it. An ordinary tensor is copied.

    Returns:
        A new CPU tensor of the same shape and type, which requires no gradient.
    """
    return native.materialise(tensor)


def gathered(parameters: torch.Tensor | Iterable[torch.Tensor]) -> native.Gathered:
    """Keeps parameters gathered in a `with` block, so that their memory can be read: numpy(), data_ptr().

    Args:
        parameters: a tensor, or several, of one optimizer. Together they must fit into the rCache.

    Returns:
        A context manager, for one `with` block.

    Do not call step() inside. Without this scope, reading the memory of a parameter is an error.
    """
    return native.Gathered([parameters] if isinstance(parameters, torch.Tensor) else list(parameters))


def adopt(model, optimizer):
    """Makes the model's calls that would read or move memory of parameters go through the optimizer."""
    for module in model.modules():
        if _held.of_module(module) is None and not hasattr(module, '_elixir_hooks'):
            module.register_state_dict_post_hook(put_copies)
            module.register_load_state_dict_pre_hook(take_values)
            module.register_load_state_dict_post_hook(hand_over_values)
            module._elixir_hooks = True
        _held.hold_module(module, optimizer)
    # accelerate wraps a model in DistributedDataParallel unless it has been prepared; Elixir sums over ranks.
    model._is_accelerate_prepared = True


# ---- state_dict() ----

def put_copies(module, state, prefix, _metadata):
    """After a module's own state_dict(): copies in the place of its parameters, one for tied names."""
    optimizer = _held.of_module(module)
    if optimizer is None or not optimizer.started:
        return
    copies = optimizer._copies_of(state)
    for name, parameter in module._parameters.items():
        key = prefix + name
        if parameter is None or key not in state or _held.of_parameter(parameter)[0] is None:
            continue
        if isinstance(state[key], torch.nn.Parameter):  # keep_vars=True
            continue
        copy = copies.get(id(parameter))
        if copy is None:
            copy = copies[id(parameter)] = optimizer._native.value(parameter)
        state[key] = copy


# ---- load_state_dict() ----

def take_values(module, state, prefix, *_rest):
    """Before a module's own load: takes the values of its parameters out, for hand_over_values()."""
    optimizer = _held.of_module(module)
    if optimizer is None:
        return
    if not optimizer.started:
        return keep_for_start(optimizer, module, state, prefix)
    loading = optimizer._loading
    if loading.root is None or prefix == '':
        loading.begin(module)
    for name, parameter in module._parameters.items():
        key = prefix + name
        if parameter is None or key not in state:
            continue
        its, parameters_name = _held.of_parameter(parameter)
        fits = its is optimizer and state[key].shape == parameter.shape and state[key].is_floating_point()
        if fits:  # else torch says what is wrong
            loading.values[parameters_name] = state.pop(key).detach()
            loading.keys.add(key)


def keep_for_start(optimizer, module, state, prefix):
    """Parameters that are built under init() have no memory: the optimizer sets their values when it starts."""
    loading = optimizer._loading
    if loading.root is None or prefix == '':
        loading.begin(module)
        loading.names = {id(parameter): name for name, parameter in optimizer._named(optimizer._model())[0]}
    for name, parameter in module._parameters.items():
        key = prefix + name
        fits = parameter is not None and parameter.is_meta and key in state and id(parameter) in loading.names
        if fits and state[key].shape == parameter.shape and state[key].is_floating_point():
            loading.values[loading.names[id(parameter)]] = state.pop(key).detach()
            loading.keys.add(key)


def hand_over_values(module, incompatible):
    """After a module's load, its children's included: sets what was taken, all at once."""
    optimizer = _held.of_module(module)
    if optimizer is None or optimizer._loading.root is not module:
        return
    loading = optimizer._loading.end()
    for key in [key for key in incompatible.missing_keys if key in loading.keys]:
        incompatible.missing_keys.remove(key)
    if loading.values and optimizer.started:
        optimizer._native.set_parameters(list(loading.values.items()))
    else:
        optimizer._values_at_start.update(loading.values)


class Loading:
    """What a load_state_dict() has taken so far."""

    def __init__(self):
        self.root = None
        self.values = {}
        self.keys = set()
        self.names = {}    # by id, of parameters that are not held yet

    def begin(self, module):
        self.__init__()
        self.root = module

    def end(self):
        taken = Loading()
        taken.values, taken.keys = self.values, self.keys
        self.__init__()
        return taken


# ---- torch's functions, for models that are held ----

_apply = torch.nn.Module._apply


@functools.wraps(_apply)
def apply_to_tensors(self, fn, recurse=True):
    """Module._apply, which to(), half(), cuda() and their like call."""
    optimizer = _held.of_module(self)
    if optimizer is None:
        return _apply(self, fn, recurse)
    parameter = next(self.parameters(), None)
    if parameter is None:
        return _apply(self, fn, recurse)
    probe = fn(torch.empty(0, dtype=parameter.dtype, device='cpu'))
    moves = probe.device.type not in ('cpu', optimizer.device.type)
    if probe.dtype != parameter.dtype or moves:
        raise Error(f'the model is cast or moved to {probe.dtype} on {probe.device.type}, and elixir.AdamW holds it: '
                    f'cast it before, or build the optimizer with dtype= and device= (it has '
                    f'{optimizer.dtype} on {optimizer.device.type}). Inputs go to optimizer.device')
    return self


def all_of_one(parameters, who):
    """The optimizer that holds these parameters, or None; an error for some of its own and others."""
    owners = {id(its): its for its in (_held.of_parameter(p)[0] for p in parameters)}
    if set(owners) == {id(None)} or not owners:
        return None
    if len(owners) > 1:
        raise Error(f'{who} of parameters of an elixir optimizer together with others: call it for each')
    return next(iter(owners.values()))


_clip = torch.nn.utils.clip_grad_norm_


@functools.wraps(_clip)
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    optimizer = all_of_one(parameters, 'clip_grad_norm_')
    if optimizer is None:
        return _clip(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    if float(norm_type) != 2:
        raise Error(f'clip_grad_norm_ with norm_type={norm_type}: elixir clips by the L2 norm; leave norm_type out')
    if error_if_nonfinite:
        raise Error('clip_grad_norm_ with error_if_nonfinite=True: elixir skips a step whose gradients are not '
                    'finite (optimizer.outcome().skipped); leave it out')
    return optimizer._clip(None if math.isinf(float(max_norm)) else float(max_norm), parameters)


def refuse(function, remedy):
    """A function of torch.nn.utils that reads gradients: an error for parameters that are held."""
    @functools.wraps(function)
    def checked(parameters, *args, **kwargs):
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(_held.of_parameter(parameter)[0] is not None for parameter in listed):
            raise Error(f'{function.__name__}: the gradients of parameters that elixir holds have gone to elixird; '
                        f'{remedy}')
        return function(listed, *args, **kwargs)
    return checked


def patch_torch():
    torch.nn.Module._apply = apply_to_tensors
    clip_value = refuse(torch.nn.utils.clip_grad_value_,
                        'a tensor hook (parameter.register_hook) can clamp them on their way')
    for place in (torch.nn.utils, torch.nn.utils.clip_grad):
        place.clip_grad_norm_ = clip_grad_norm_
        place.clip_grad_value_ = clip_value


patch_torch()
