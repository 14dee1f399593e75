"""Checkpoints, which elixird writes and reads."""

import json
import os
from collections.abc import Mapping
from typing import Any, Literal, overload

from elixir._load import Error, native
from elixir._optimizer import Optimizer

Path = str | os.PathLike[str]
Files = Mapping[str, bytes | str] | None


@overload
def save(optimizer: Optimizer, folder: Path, *, states: bool = ..., model: bool = ..., frozen: bool = ..., files: Files = ...,
         program: str = ..., wait: Literal[True] = ...) -> dict[str, Any]: ...


@overload
def save(optimizer: Optimizer, folder: Path, *, states: bool = ..., model: bool = ..., frozen: bool = ..., files: Files = ...,
         program: str = ..., wait: Literal[False]) -> native.Saving: ...


def save(optimizer, folder, *, states=True, model=True, frozen=True, files=None, program='', wait=True):
    """Writes the run as it is after the last step() into a new folder; training may go on meanwhile.

    Any number of ranks, in any layout, can load it, and transformers opens the model in it. All ranks call it.

    Args:
        optimizer: elixir.AdamW or elixir.Adam.
        folder: a path that does not exist yet.
        states: False writes the model alone, in the compute type.
        model: False writes the states alone, if you save the model's values by other means. Load those values
            first; load() compares a hash of them that the folder keeps.
        frozen: False leaves out parameters that are not trained (the base of an adapter).
        files: {name: bytes or str} to put beside, such as {"config.json": text}.
        program: any text of yours, up to 64 KiB, which load() gives back.
        wait: False returns at once, with an object that has done(), progress() and wait().

    Returns:
        {"path", "step", "bytes", "write_s", "stall_s", "not_finite"}; with wait=False the object.

    Raises:
        elixir.Error: the folder exists, the disk is full, or elixird is lost.
    """
    folder = os.path.abspath(os.fspath(folder))
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    listed = [(name, text.encode() if isinstance(text, str) else bytes(text)) for name, text in (files or {}).items()]
    saving = optimizer._native.save(folder, states, model, frozen, listed, program, b'')
    return saving.wait() if wait else saving


def load(optimizer: Optimizer, folder: Path, *, states: bool = True) -> dict[str, Any]:
    """Loads a checkpoint, or the weights of a Hugging Face folder. All ranks call it, between steps.

    Args:
        optimizer: elixir.AdamW or elixir.Adam over a model with the same parameters.
        folder: what save() has written, by any number of ranks, or a folder of safetensors files. What it leaves out
            (model=False, frozen=False), the model must have already.
        states: True resumes the run, with moments and counts of steps; False takes the values alone.

    Returns:
        {"path", "step", "ranks", "has_states", "program", "rank_state"}

    Raises:
        elixir.Error: names, shapes or values that the folder leaves out differ (nothing is changed then), or a
            file is damaged.
    """
    folder = os.path.abspath(os.fspath(folder))
    if not os.path.isdir(folder):
        raise Error(f'elixir.load: there is no folder {folder}')
    if leaves_out(folder):
        optimizer.start()  # with the model's own values
    if optimizer.started:
        return optimizer._native.load(folder, states)
    optimizer._start(None, load_from=folder, load_states=states)
    return optimizer._native.loaded()


def leaves_out(folder: str) -> bool:
    """Whether the folder was saved without some parameters, which a run must have before it loads."""
    path = os.path.join(folder, 'elixir.json')
    if not os.path.exists(path):
        return False
    with open(path, encoding='utf-8') as file:
        try:
            return 'left_out' in json.load(file)['manifest']
        except (ValueError, KeyError, TypeError):
            return False  # load() says what is wrong


def save_model(optimizer: Optimizer, folder: Path, *, files: Files = None) -> dict[str, Any]:
    """Writes the model alone as a Hugging Face folder, in the compute type. All ranks call it.

    Args:
        optimizer, folder, files: as of save().

    Returns:
        What save() returns.
    """
    return save(optimizer, folder, states=False, files=files)
