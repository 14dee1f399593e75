"""Activation checkpointing: regions of a model that keep what the plan says, for backward."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from elixir import _held
from elixir._load import Error, native


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
               preserve_rng_state: bool = True, context_fn: Any = torch.utils.checkpoint.noop_context_fn,
               determinism_check: str = 'default', debug: bool = False, early_stop: bool = True, **kwargs: Any) -> Any:
    """Runs function(*args, **kwargs), and keeps for backward what the optimizer's `activations` say.

    Without a plan, and with activations="recompute", that is the inputs alone: backward runs the function again, up to
    the last operator whose result it reads. The function must compute the same values each time. Gradients have the
    same bits, whatever is kept. It takes the arguments of torch.utils.checkpoint.checkpoint.

    Gradients flow through what the function is given and what it returns. A tensor that it leaves elsewhere (a list,
    an attribute) has none, and a tensor with a history must be an argument, not a variable from around.

    Args:
        function: called now, and perhaps again in backward, by another thread.
        args, kwargs: its arguments; tensors may lie in lists, tuples and dicts. Gradients flow to tensors.
        use_reentrant, determinism_check, debug, early_stop: as for torch's, and without effect.
        context_fn: only torch's default.
        preserve_rng_state: must be True: the second run draws the numbers of the first.

    Returns:
        What the function returns; tensors may lie in lists, tuples and dicts.

    Raises:
        Error: preserve_rng_state is False, context_fn is given, or an input is written in place.

    Source: Chen et al., arXiv 1604.06174. docs/training.md says what regions keep.
    """
    del use_reentrant, determinism_check, debug, early_stop
    if context_fn is not torch.utils.checkpoint.noop_context_fn:
        raise Error('elixir.checkpoint(context_fn=...): activations="products:K" of the optimizer says what regions keep; '
                    'leave context_fn out')
    if not preserve_rng_state:
        raise Error('elixir.checkpoint(preserve_rng_state=False): the second run would draw other numbers for dropout; '
                    'leave it out')
    while isinstance(function, functools.partial):  # its tensors are arguments, too
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    leaves, shape = _pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = [leaves[place] for place in places]
    constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    returned = {}  # by the first run

    def run(tensors):
        given = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        own_args, own_kwargs = _pytree.tree_unflatten(given, shape)
        results, returned_shape = _pytree.tree_flatten(function(*own_args, **own_kwargs))
        if 'shape' not in returned:
            returned['shape'] = returned_shape
            returned['others'] = [None if isinstance(result, torch.Tensor) else result for result in results]
            returned['places'] = [place for place, result in enumerate(results) if isinstance(result, torch.Tensor)]
        return [result for result in results if isinstance(result, torch.Tensor)]

    outputs = native.checkpoint(run, inputs)
    results = list(returned['others'])  # `run` holds the other list, and a result holds `run`
    for place, output in zip(returned['places'], outputs, strict=True):
        results[place] = output
    return _pytree.tree_unflatten(results, returned['shape'])


def extend_models(module):
    """Layers of transformers are regions of elixir.checkpoint() if the optimizer that holds them has `activations`.

    With offload=True an optimizer that is made or started later has activations="host", unless it asks for others.
    """
    model = module.PreTrainedModel
    sets = model._set_gradient_checkpointing
    enables = getattr(model, '_activation_checkpointing_enable', None)  # as of transformers 5.24
    offloading = threading.local()

    @functools.wraps(sets)
    def set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=torch_checkpoint, **kwargs):
        offload = enable and getattr(offloading, 'asked', False)
        self._elixir_offload = offload
        sets(self, enable, LayerCheckpoint.over(gradient_checkpointing_func, offload), **kwargs)
    model._set_gradient_checkpointing = set_gradient_checkpointing
    if enables is None:
        return

    @functools.wraps(enables)
    def activation_checkpointing_enable(self, activation_checkpointing_kwargs=None, every_n_layers=1, offload=False):
        offloading.asked = offload
        try:
            enables(self, activation_checkpointing_kwargs, every_n_layers, offload)
        finally:
            offloading.asked = False
    model._activation_checkpointing_enable = activation_checkpointing_enable


def offloads(model):
    """Whether transformers was asked to hold activations of the model, or of a part of it, in host memory."""
    return model is not None and any(getattr(part, '_elixir_offload', False) for part in model.modules())


class LayerCheckpoint:
    """The function that transformers calls for each layer. Copies and pickles with a model."""

    def __init__(self, otherwise):
        self.otherwise = otherwise  # transformers' choice

    @classmethod
    def over(cls, otherwise, offload=False):
        """This, or the given function where it does what elixir.checkpoint() does not. transformers' own function for
        `offload` wraps torch's."""
        given = otherwise.func if isinstance(otherwise, functools.partial) else otherwise
        options = otherwise.keywords if isinstance(otherwise, functools.partial) else {}
        usual = (given is torch_checkpoint or offload) and set(options) <= {'use_reentrant', 'preserve_rng_state'}
        return cls(otherwise) if usual and options.get('preserve_rng_state', True) else otherwise

    def __call__(self, function, *args, **kwargs):
        layer = next(iter(function.args), None) if isinstance(function, functools.partial) else None
        layer = layer if layer is not None else getattr(function, '__self__', None)
        if layer is None or not self.takes(layer):
            return self.otherwise(function, *args, **kwargs)
        return checkpoint(function, *args, **kwargs)

    def takes(self, layer):
        """Whether the layer's optimizer has `activations`. A layer whose inner values the loss reads beside its result
        (the router's, other layers' attention) needs torch's function, which runs forward with a graph."""
        optimizer = _held.of_module(layer)
        if optimizer is None or not optimizer._has_regions:
            return False
        config = getattr(layer, 'config', None) or next(
            (part.config for part in layer.modules() if getattr(part, 'config', None) is not None), None)
        return not any(getattr(config, name, False) for name in READ_BESIDE)


READ_BESIDE = ('output_router_logits', 'output_attentions', 'output_hidden_states')
