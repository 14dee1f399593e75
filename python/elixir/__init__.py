"""Train models that are too large for your GPUs: an optimizer that keeps weights, gradients and states outside.

    import elixir

    optimizer = elixir.AdamW(model, lr=2e-5, max_grad_norm=1.0)
    trainer = Trainer(model, args, train_dataset=data, optimizers=(optimizer, None))

One daemon per node, elixird, keeps the FP32 states in shared memory and runs Adam on the CPU. The model's
parameters are views of chunks, which come to the device around the operators that read them. A program needs no
other change: a loop of your own, Hugging Face's Trainer, TRL, PEFT and accelerate work as with torch.optim.AdamW.
"""

from elixir._load import Error, version as __version__  # first: it says what does not fit
from elixir._checkpoint import checkpoint
from elixir._checkpoints import last_checkpoint
from elixir._model import gathered, init, materialise
from elixir._optimizer import Adam, AdamW
from elixir._saving import load, save, save_model
from elixir._loss import linear_cross_entropy
from elixir._plan import Plan, plan
from elixir._status import status
from elixir import _extend, _memory, hf

__all__ = [
    'Adam', 'AdamW', 'Error', 'Plan', '__version__', 'checkpoint', 'gathered', 'hf', 'init', 'last_checkpoint',
    'linear_cross_entropy', 'load', 'materialise', 'plan', 'save', 'save_model', 'status',
]
