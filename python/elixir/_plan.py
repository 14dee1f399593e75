"""The planner's choice of a layout."""

import json
import os

import torch
from torch.utils import _pytree

from elixir._load import native


class Plan:
    """How a training is laid out: what lies where, and how long a step takes. str() has six lines."""

    def __init__(self, held):
        self._native = held
        self.values = json.loads(held.json())  # as `elixirctl plan --json` prints it

    def __str__(self):
        return describe(self.values)

    __repr__ = __str__

    def save(self, path):
        """Writes the plan as JSON, for plan=path or `elixir-train --plan`."""
        with open(path, 'w', encoding='utf-8') as file:
            file.write(self._native.json())

    def plot(self, axes=None):
        """Draws the device's memory by what holds it (needs matplotlib). Returns the axes."""
        from matplotlib import pyplot  # noqa: PLC0415  (an extra: pip install 'elixir-train[plot]')
        axes = axes or pyplot.subplots(figsize=(7, 3))[1]
        parts = [(name, size) for name, size in self.values['bytes']['gpu'].items() if name != 'total' and size > 0]
        left = 0
        for name, size in parts:
            axes.barh([0], [size / 2**30], left=left, label=f'{name} {size / 2**30:.2f} GiB')
            left += size / 2**30
        axes.set_yticks([])
        axes.set_xlabel('GiB on the device')
        axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncol=3, fontsize='small')
        return axes


def describe(values):
    gib = 2**30
    gpu, host = values['bytes']['gpu']['total'] / gib, values['bytes']['host']['total'] / gib
    predicted, placed = values['predicted'], values['placement']
    return '\n'.join((
        f"step      {predicted['step_s'] * 1e3:.3g} ms, {predicted['binding']} takes longest",
        f'memory    {gpu:.2f} GiB on the device, {host:.2f} GiB on the host',
        f"chunks    {values['n_chunks']} of {values['chunk_numel']:,} parameters",
        f"rCache    {values['rcache_blocks']} blocks",
        f"states    {placed['gpu']} chunks on the device, {placed['swing']} swing, {placed['cpu']} on the host",
        f"updates   {values['update']}, exchange {values['exchange']}",
    ))


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
    held = native.plan(*tensors, loss, tokens, options)
    return None if held is None else Plan(held)


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


def plan(model, batch, **options):
    """What the planner would choose for a model and a batch, without training.

    Args:
        model: a module; built under elixir.init() it takes no memory.
        batch: the keyword arguments of a forward pass, as {"input_ids": ..., "labels": ...}; sizes count alone.
        options: as of elixir.AdamW: dtype, device, gpu_memory="24GiB", accumulate.

    Returns:
        elixir.Plan, or None: nothing is scarce (a CPU without gpu_memory), or the machine was not measured
        (`elixirctl probe`).
    """
    from elixir import AdamW  # noqa: PLC0415  (it imports this)
    optimizer = AdamW(model, **options)
    optimizer._starting = True  # the forward pass of the profile starts nothing
    try:
        return of_batch(model, optimizer._named(model), ((), dict(batch)), optimizer._native_options())
    finally:
        optimizer.release()
