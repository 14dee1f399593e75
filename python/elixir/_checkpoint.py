"""Activation checkpointing: regions of a model that keep what the plan says, for backward."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from elixir import _held
from elixir._load import Error, native


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
               preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Runs function(*args, **kwargs), and keeps for backward what the optimizer's `activations` say.

    Without a plan, and with activations="recompute", that is the inputs alone: backward runs the function again, up to
    the last operator whose result it reads. The function must compute the same values each time. Gradients have the
    same bits, whatever is kept. It takes the arguments of torch.utils.checkpoint.checkpoint.

    Args:
        function: called now, and perhaps again in backward, by another thread.
        args, kwargs: its arguments; tensors may lie in lists, tuples and dicts. Gradients flow to tensors.
        use_reentrant: as for torch's, and without effect: both kinds of torch's functions may be given.
        preserve_rng_state: must be True: the second run draws the numbers of the first.

    Returns:
        What the function returns; tensors may lie in lists, tuples and dicts.

    Raises:
        Error: preserve_rng_state is False; or an input is written in place.

    Source: Chen et al., arXiv 1604.06174. docs/training.md says what regions keep.
    """
    del use_reentrant
    if not preserve_rng_state:
        raise Error('elixir.checkpoint(preserve_rng_state=False): the second run would draw other numbers for dropout; '
                    'leave it out')
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
    """Layers of transformers whose parameters an elixir optimizer holds are regions of elixir.checkpoint()."""
    model = module.PreTrainedModel
    sets = model._set_gradient_checkpointing

    @functools.wraps(sets)
    def set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=torch_checkpoint, **kwargs):
        sets(self, enable, _of_optimizer(self, gradient_checkpointing_func), **kwargs)
    model._set_gradient_checkpointing = set_gradient_checkpointing


def _of_optimizer(model, otherwise):
    """torch's function as it was given, and elixir.checkpoint while an optimizer holds the model's parameters."""
    known = isinstance(otherwise, functools.partial) and otherwise.func is torch_checkpoint
    if not known and otherwise is not torch_checkpoint:
        return otherwise  # with offload, or the program's own
    options = otherwise.keywords if known else {}
    if set(options) - {'use_reentrant', 'preserve_rng_state'} or not options.get('preserve_rng_state', True):
        return otherwise  # what torch's alone can do

    held = weakref.ref(model)

    @functools.wraps(torch_checkpoint)
    def chosen(function, *args, **kwargs):
        if _held.of_module(held()) is None:
            return otherwise(function, *args, **kwargs)
        return checkpoint(function, *args, **kwargs)
    return chosen
