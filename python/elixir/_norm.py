"""The norm of a step's gradients, which is known after the step."""

import torch
from torch.utils import _pytree

from elixir._load import Error


class LazyNorm(torch.Tensor):
    """What clip_grad_norm_ returns: a tensor of shape [], FP32, that asks for its value when it is read.

    Elixir sums the squares while gradients go to elixird, so the norm of all of them is known once step() has
    been called. Reading it before is an error that says so.
    """

    @staticmethod
    def __new__(cls, ask):
        made = torch.Tensor._make_wrapper_subclass(cls, (), dtype=torch.float32, device='cpu')
        made._ask = ask
        made._value = None
        return made

    def value(self):
        if self._value is None:
            self._value = torch.tensor(self._ask(), dtype=torch.float32)
        return self._value

    def __repr__(self, **_):
        try:
            return repr(self.value())
        except Error:
            return 'elixir.LazyNorm(known after step())'

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def known(leaf):
            return leaf.value() if isinstance(leaf, LazyNorm) else leaf
        return func(*_pytree.tree_map(known, args), **_pytree.tree_map(known, kwargs or {}))
