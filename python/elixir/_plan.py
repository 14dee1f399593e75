"""The planner's choice of a layout."""

import json
import os
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch.utils import _pytree

from elixir._load import native
from elixir._options import PlanOptions

GIB = 2**30
# The parts of the device's memory, from below: the name in the plan, and the label in the drawing.
BANDS = (('buffers', 'buffers'), ('states', 'model states'), ('swing', 'swing chunks on their way'),
         ('rcache', 'rCache'), ('grad_blocks', 'gradients on their way'), ('activations', 'activations'))


class Plan:
    """How a training is laid out: what lies where, and how long a step takes. str() has six lines.

    elixir.plan() and optimizer.plan return one; a program does not build it.

    Attributes:
        values: a dictionary, as `elixirctl plan --json` prints it: bytes, seconds ("step_s") and choices.
    """

    def __init__(self, held: native.Plan) -> None:
        self._native = held
        self.values: dict[str, Any] = json.loads(held.json())  # as `elixirctl plan --json` prints it

    def __str__(self) -> str:
        return describe(self.values)

    __repr__ = __str__

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, for plan=path or `elixir-train --plan`.

        Args:
            path: the file; it is replaced if it exists.
        """
        with open(path, 'w', encoding='utf-8') as file:
            file.write(self._native.json())

    def plot(self, axes: Any = None) -> Any:
        """Draws the device's memory by what holds it (needs matplotlib).

        Args:
            axes: matplotlib's axes to draw on; None makes new ones.

        Returns:
            The axes. Units: GiB over operators.
        """
        from matplotlib import pyplot  # noqa: PLC0415  (an extra: pip install 'elixir-train[plot]')
        axes = axes or pyplot.subplots(figsize=(8, 4), layout='constrained')[1]
        held = self.values['bytes']['gpu']
        curve = self.values['activation_curve'] or [held['activations']]
        steps = range(len(curve) + 1)
        below = [0.0] * len(steps)
        for name, label in BANDS:
            sizes = curve if name == 'activations' else [held[name]] * len(curve)
            if max(sizes) == 0:
                continue
            above = [low + size / GIB for low, size in zip(below, [*sizes, sizes[-1]])]
            axes.fill_between(steps, below, above, step='post', label=f'{label}, {max(sizes) / GIB:.3g} GiB')
            below = above
        if self.values['gpu_memory_bytes']:
            memory = self.values['gpu_memory_bytes'] / GIB
            axes.axhline(memory, linestyle='--', color='tab:red', label=f'memory of the device, {memory:.3g} GiB')
        axes.set_xlabel('operators of a step: forward, then backward')
        axes.set_xticks([])
        axes.set_xlim(0, len(curve))
        axes.set_ylabel('GiB')
        axes.legend(loc='upper left', bbox_to_anchor=(1.0, 1.0), fontsize='small')
        return axes


def describe(values):
    gpu, host = values['bytes']['gpu']['total'] / GIB, values['bytes']['host']['total'] / GIB
    predicted, placed = values['predicted'], values['placement']
    return '\n'.join((
        f"step      {predicted['step_s'] * 1e3:.3g} ms, {predicted['binding']} takes longest",
        f'memory    {gpu:.2f} GiB on the device, {host:.2f} GiB on the host',
        f"chunks    {values['n_chunks']} of {values['chunk_numel']:,} parameters",
        f"rCache    {values['rcache_blocks']} blocks",
        f"states    {placed['gpu']} chunks on the device, {placed['swing']} swing, {placed['cpu']} on the host",
        f"updates   {values['update']}, exchange {values['exchange']}",
        *regions_line(values['regions']),
    ))


def regions_line(regions):
    """What checkpointed regions keep, if there are some."""
    words = (('keep_all', 'keep everything'), ('keep_products', 'keep products'),
             ('host_products', 'send products to the host'), ('recompute', 'recompute'),
             ('host_boundaries', 'of them send their inputs'))
    said = ', '.join(f'{regions[name]} {text}' for name, text in words if regions.get(name))
    return [f'regions   {said}'] if said else []


def read(path):
    with open(os.fspath(path), encoding='utf-8') as file:
        return Plan(native.plan_from_json(file.read()))


def of_batch(model, tensors, batch, options):
    """The plan for a step with this batch, or None where the planner leaves the choice to the optimizer."""
    args, kwargs = batch

    def loss(device):
        def there(leaf):
            return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
        with torch.enable_grad():
            output = model(*_pytree.tree_map(there, args), **_pytree.tree_map(there, kwargs))
        return loss_of(output)

    tokens = next((leaf.numel() for leaf in _pytree.tree_leaves((args, kwargs))
                   if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point()), 0)
    with ConditionsHold():
        held = native.plan(*tensors, loss, tokens, options)
    return None if held is None else Plan(held)


class ConditionsHold(torch.overrides.TorchFunctionMode):
    """A profile knows shapes and no values. A condition on values is taken as true: a row is one sequence, and its mask
    masks nothing. transformers asks that before attention."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__bool__ and args[0].is_meta:
            return True
        return func(*args, **(kwargs or {}))


def loss_of(output):
    """A number to differentiate: the output's loss, else the sum of its first floating-point tensor."""
    loss = getattr(output, 'loss', None)
    if loss is not None:
        return loss
    leaves = [leaf for leaf in _pytree.tree_leaves(output)
              if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    if not leaves:
        raise TypeError('the model returns no floating-point tensor to profile')
    return leaves[0].float().sum()


def plan(model: torch.nn.Module, batch: Mapping[str, Any], **options: Unpack[PlanOptions]) -> Plan | None:
    """What the planner would choose for a model and a batch, without training.

    Args:
        model: a module; built under elixir.init() it takes no memory.
        batch: the keyword arguments of a forward pass, as {"input_ids": ..., "labels": ...}; sizes count alone.
        options: as of elixir.AdamW: dtype, device, gpu_memory="24GiB", accumulate.

    Returns:
        elixir.Plan, or None: nothing is scarce (a CPU without gpu_memory), or the machine could not be measured.
        The first call on new hardware measures it, in at most 20 s.
    """
    from elixir import AdamW  # noqa: PLC0415  (it imports this)
    optimizer = AdamW(model, **options)
    optimizer._starting = True  # the forward pass of the profile starts nothing
    try:
        return of_batch(model, optimizer._named(model), ((), dict(batch)), optimizer._native_options())
    finally:
        optimizer.release()
