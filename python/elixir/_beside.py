"""What elixird writes beside the files of Trainer and accelerate, and what those hold already."""

import json
import os

from elixir import _checkpoints, _saving
from elixir._checkpoints import FOLDER
from elixir._load import Error


def names_in(folder):
    """The names of the tensors in the folder's safetensors files."""
    index = os.path.join(folder, 'model.safetensors.index.json')
    if os.path.exists(index):
        with open(index, encoding='utf-8') as file:
            return set(json.load(file)['weight_map'])
    path = os.path.join(folder, 'model.safetensors')
    if not os.path.exists(path):
        raise Error(f'{folder} has no model.safetensors: Elixir reads weights from safetensors files')
    with open(path, 'rb') as file:
        length = int.from_bytes(file.read(8), 'little')
        return set(json.loads(file.read(length))) - {'__metadata__'}


def write_beside(own, folder, wait=True):
    """Writes FOLDER/elixir, without what Trainer or accelerate has written into the folder already."""
    return _saving.save(own, os.path.join(folder, FOLDER), wait=wait, **parts_beside(own, folder))


def load_beside(own, folder, step):
    """Loads FOLDER/elixir, whose states must be of that step."""
    found = _checkpoints.step_of(folder)
    if found not in (None, step):  # load() says what is wrong with a folder that has none
        raise Error(f'{os.path.join(folder, FOLDER)} has the states after step {found}, and the other files of {folder} are '
                    f'of step {step}: they belong to different checkpoints')
    _saving.load(own, os.path.join(folder, FOLDER))


def parts_beside(own, folder):
    """What save() need not write, as its arguments. Rank 0's count: the others may not see the files yet."""
    model = own._model()
    if model is None or own._native.rank() != 0:
        return {}
    try:
        there = names_in(folder)
    except (Error, OSError, ValueError):
        there = set()
    if values_of(model) <= there:
        return {'model': False}
    # The adapter is small, and is loaded from either; the base comes from where the program took it.
    return {'frozen': False} if base_comes_back(model) else {}


def values_of(model):
    """The names of what a run needs before it loads states alone: parameters, and buffers that are stored."""
    names = {name for name, _ in model.named_parameters()}
    for prefix, module in model.named_modules():
        stored = set(module._buffers) - module._non_persistent_buffers_set
        names.update(f'{prefix}.{name}' if prefix else name for name in stored if module._buffers[name] is not None)
    return names


# Ways of PEFT to begin an adapter that leave the base as it is; others take a part of it away.
PLAIN_ADAPTERS = (True, False, 'gaussian', 'orthogonal', 'eva')


def base_comes_back(model):
    configs = getattr(model, 'peft_config', None)
    return isinstance(configs, dict) and bool(configs) and all(
        getattr(config, 'init_lora_weights', True) in PLAIN_ADAPTERS for config in configs.values())
