"""Hugging Face: models by their folder.

Trainer and accelerate need no call: importing elixir extends them (elixir/_trainer.py, elixir/_accelerate.py).
"""

import logging
import os
from typing import Any

from elixir import _model
from elixir._beside import names_in

__all__ = ['from_pretrained']

logger = logging.getLogger('elixir')


def from_pretrained(model_class: Any, folder: str | os.PathLike[str], **kwargs: Any) -> Any:
    """A model of a local Hugging Face folder whose weights never are in this process as a whole.

    The model is built under elixir.init(). The optimizer that is built on it takes the values from the folder's
    safetensors files, one chunk at a time, on the node of rank 0.

    Args:
        model_class: such as transformers.AutoModelForCausalLM or LlamaForCausalLM.
        folder: a folder with config.json and safetensors files, with the model's own names.
        kwargs: for the configuration, such as attn_implementation.

    Returns:
        The model. Where the folder's names differ from the model's (fused experts, a base model's folder),
        model_class.from_pretrained(folder) is returned, and a warning says why.
    """
    import transformers  # noqa: PLC0415
    folder = os.path.abspath(os.fspath(folder))
    config = transformers.AutoConfig.from_pretrained(folder, **kwargs)
    with _model.init():
        build = getattr(model_class, 'from_config', None) or model_class._from_config
        model = build(config)
    stored = names_in(folder)
    tied = set(getattr(model, '_tied_weights_keys', None) or ())
    lacks = [name for name, _ in model.named_parameters() if name not in stored and name not in tied]
    if lacks:
        logger.warning("%s has no %s%s under the model's name: taking %s.from_pretrained, which holds the whole model "
                       'in this process', folder, lacks[0], f' and {len(lacks) - 1} others' if lacks[1:] else '',
                       model_class.__name__)
        return model_class.from_pretrained(folder, **kwargs)
    model.__dict__['_elixir_load_from'] = folder
    return model
