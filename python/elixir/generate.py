"""Continues a text with a model of Hugging Face, and prints it as it comes.

    python -m elixir.generate MODEL PROMPT

MODEL   a folder that transformers opens: a Hugging Face folder, a checkpoint of Elixir or of Trainer, the folder
        of an adapter. Of a folder of checkpoints the newest is taken, and standard error names it
PROMPT  the text to continue; "-" is standard input

examples:
  python -m elixir.generate Qwen3-0.6B "The cat sat"
  python -m elixir.generate run/checkpoint-500 --tokenizer Qwen3-0.6B "The cat sat" --temperature 0
  python -m elixir.generate Llama-3.3-70B "The cat sat" --offload --dtype bf16 < /dev/null

Weights that do not fit the GPU stay in host memory, with elixird, and come to the GPU for the operators that read
them. --offload asks for this also where they would fit.
Needs transformers (pip install transformers). Without a tokenizer the tokens of a model of 256 are bytes.
Exit codes: 0 done, 2 wrong command line, 3 memory is missing, 4 the model cannot be used, 5 a package, elixird or
the GPU is missing.
"""

import argparse
import codecs
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable

import torch

import elixir
from elixir import _command, _options, _tokens
from elixir._command import Failure, trying

NAME = 'elixir.generate'
BYTES = 256  # a vocabulary of so many tokens, without a tokenizer
FITS = 0.9   # of the free memory; the rest is for keys, values and activations
MOST_TEMPERATURE = 1000


def generate(model: str | os.PathLike[str], prompt: str, *, max_tokens: int = 200, temperature: float = 0.8,
             top_k: int = 0, top_p: float = 1.0, seed: int = 1, device: str = 'auto', dtype: str = 'auto',
             offload: bool | None = None, tokenizer: str | None = None,
             on_text: Callable[[str], object] | None = None, gpu_memory: int | str | None = None,
             rcache_blocks: int | None = None) -> str:
    """Continues a text.

    Args:
        model: the folder of a model, or of checkpoints.
        prompt: the text to continue.
        max_tokens: most tokens that are added.
        temperature: how freely tokens are drawn; 0 takes the likeliest, always.
        top_k, top_p: draws from so many likeliest tokens (0: all), or from those that have this probability together.
        seed: chooses what is drawn.
        device: "cpu", "cuda", "cuda:1", or "auto".
        dtype: "fp32", "bf16", "fp16", or "auto": as the weights are stored.
        offload: True keeps the weights with elixird; None: where they do not fit the GPU.
        tokenizer: the folder of a tokenizer, where the model's has none.
        on_text: called with each piece of text as it comes, beginning with the prompt.
        gpu_memory: of offloaded weights: device memory for everything, as in "24GiB".
        rcache_blocks: of offloaded weights: chunks on the device at a time; None: a quarter of them.

    Returns:
        The prompt and the text that follows it.

    Raises:
        elixir._command.Failure: an argument is out of range, the folder holds no such model, or memory is missing.
    """
    _check(prompt, max_tokens, temperature, top_k, top_p, seed)
    transformers = _command.need('transformers', NAME)
    folder = folder_of(os.fspath(model))
    device = device_of(device)
    layout = {'gpu_memory': gpu_memory, 'rcache_blocks': rcache_blocks}
    built = Model(transformers, folder, device, dtype, offload,
                  {name: value for name, value in layout.items() if value is not None})
    tokens = Bytes() if tokenizer is None and is_of_bytes(folder, built.model) else Text(
        transformers, _tokens.load_tokenizer(tokenizer or tokenizer_folder_of(folder), NAME))
    ids = tokens.encode(prompt)
    count = room_for(len(ids), max_tokens, built.model.config)
    pieces = []

    def give(text):
        pieces.append(text)
        if on_text is not None:
            on_text(text)
    how = {'max_new_tokens': count, 'do_sample': temperature > 0, 'streamer': tokens.streamer(give),
           'logits_processor': [finite], 'pad_token_id': tokens.padding}
    if temperature > 0:
        how.update(temperature=float(temperature), top_k=top_k, top_p=float(top_p))
    inputs = torch.tensor([ids], device=built.device)
    with torch.random.fork_rng(devices=[built.device] if built.device.type == 'cuda' else []):
        torch.manual_seed(seed)
        try:
            built.model.generate(inputs, attention_mask=torch.ones_like(inputs), **how)
        except torch.OutOfMemoryError as failure:
            raise Failure(f'{built.device} has too little memory: keep the weights in host memory with --offload, or '
                          f'shorten the text ({str(failure).splitlines()[0]})', _command.NO_ROOM) from failure
    return ''.join(pieces)


def _check(prompt, max_tokens, temperature, top_k, top_p, seed):
    for well, text in ((prompt, 'the prompt is empty: there is nothing to continue'),
                       (max_tokens >= 1, f'--max-tokens {max_tokens}: it must be at least 1'),
                       (0 <= temperature <= MOST_TEMPERATURE,
                        f'--temperature {temperature}: it must be from 0 to {MOST_TEMPERATURE}'),
                       (top_k >= 0, f'--top-k {top_k}: it must be at least 0, which draws from all tokens'),
                       (0 < top_p <= 1, f'--top-p {top_p}: it must be above 0, and at most 1'),
                       (0 <= seed < 1 << 63, f'--seed {seed}: it must be from 0 to {(1 << 63) - 1}')):
        if not well:
            raise Failure(text, _command.BAD_ARGUMENT)


def device_of(given):
    try:
        device = torch.device(_options.device_of(given))
    except RuntimeError as failure:  # also elixir.Error
        raise Failure(f'--device {given}: give cpu, cuda or cuda:1', _command.BAD_ARGUMENT) from failure
    if device.type == 'cuda' and not torch.cuda.is_available():
        raise Failure(f'--device {given}: torch finds no GPU; elixirctl doctor --gpu says why', _command.UNAVAILABLE)
    return device


# ---- the folder ----

def holds_model(folder):
    return any(os.path.isfile(os.path.join(folder, name)) for name in ('config.json', 'adapter_config.json'))


def folder_of(place):
    """The folder itself, or the newest checkpoint in it: that with the greatest number."""
    if not os.path.isdir(place):
        raise Failure(f'{place}: no such folder; download the model first, as with\n'
                      f'  hf download {place} --local-dir MODEL')
    if holds_model(place):
        return place
    numbers = {name: re.fullmatch(r'(?:checkpoint|step)-(\d+)', name) for name in os.listdir(place)}
    found = [(int(match[1]), name) for name, match in numbers.items()
             if match and holds_model(os.path.join(place, name))]
    if not found:
        raise Failure(f'{place}: it has no config.json, so it is no model, and no checkpoint is in it')
    newest = os.path.join(place, max(found)[1])
    print(f'{NAME}: {newest}', file=sys.stderr)
    return newest


def has_tokenizer(folder):
    return any(os.path.isfile(os.path.join(folder, name))
               for name in ('tokenizer.json', 'tokenizer_config.json', 'tokenizer.model', 'vocab.json'))


def tokenizer_folder_of(folder):
    """Trainer may keep it beside its checkpoints."""
    above = os.path.dirname(os.path.abspath(folder))
    for place in (folder, above):
        if has_tokenizer(place):
            return place
    raise Failure(f'{folder}: it has no tokenizer; name the folder of one with --tokenizer FOLDER')


def is_of_bytes(folder, model):
    return model.config.vocab_size == BYTES and not has_tokenizer(folder)


def weight_bytes_of(folder):
    """Those of the model's files, as they are stored."""
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
               if re.fullmatch(r'model.*\.safetensors', name))


def context_of(config):
    return getattr(config, 'max_position_embeddings', None) or getattr(config, 'n_positions', None) or math.inf


def room_for(given, asked, config):
    """How many tokens can be added to so many: positions beyond the context mean nothing to the model."""
    context = context_of(config)
    if given >= context:
        raise Failure(f'the prompt has {given} tokens, and the model sees {context} at a time: shorten it')
    if given + asked > context:
        print(f'{NAME}: the prompt has {given} tokens, and the model sees {context} at a time: at most '
              f'{context - given} are added', file=sys.stderr)
    return min(asked, context - given)


# ---- the model ----

def free_bytes_of(device):
    return torch.cuda.mem_get_info(device)[0] if device.type == 'cuda' else math.inf


class Model:
    """A model that is ready to run: on the device, or with elixird."""

    def __init__(self, transformers, folder, device, dtype, offload, layout):
        auto = transformers.AutoModelForCausalLM
        adapter = not os.path.isfile(os.path.join(folder, 'config.json'))
        if adapter:
            _command.need('peft', f'{folder}, an adapter,')
        kind = self._type(transformers, folder, dtype, adapter)
        self.device = device
        self.offloaded = self._is_offloaded(folder, kind, offload, adapter)
        if layout and not self.offloaded:
            raise Failure(f'--{next(iter(layout)).replace("_", "-")} is for weights in host memory: add --offload',
                          _command.BAD_ARGUMENT)
        if not self.offloaded:
            self.model = trying(f'{folder}: it cannot be opened', auto.from_pretrained, folder, dtype=kind,
                                local_files_only=True)
            trying(f'{folder}: it cannot be moved to {device}', self.model.to, device)
            self.model.eval()
            return
        if kind is torch.float16:
            raise Failure('weights in host memory compute in BF16 or FP32: add --dtype bf16', _command.BAD_ARGUMENT)
        self.model = trying(f'{folder}: it cannot be opened', elixir.hf.from_pretrained, auto, folder,
                            dtype=kind)
        self.model.requires_grad_(False).eval()
        self.weights = elixir.AdamW(self.model, device=str(device), dtype=kind, plan=None, log_plan=False, **layout)
        self.weights.start()
        self.device = self.weights.device

    @staticmethod
    def _type(transformers, folder, dtype, adapter):
        if dtype != 'auto':
            return _options.dtype_of(dtype)
        if adapter:
            return 'auto'
        config = trying(f'{folder}: its config.json cannot be read', transformers.AutoConfig.from_pretrained, folder)
        return config.dtype or torch.float32

    def _is_offloaded(self, folder, kind, offload, adapter):
        stored = weight_bytes_of(folder)
        if offload and (adapter or not stored):
            raise Failure(f'{folder}: --offload is for a folder with model.safetensors; an adapter is merged first '
                          '(merge_and_unload), and other files are stored anew (save_pretrained)')
        if offload is not None or adapter or not stored:
            return bool(offload)
        free = free_bytes_of(self.device)
        if stored <= FITS * free:
            return False
        print(f'{NAME}: the weights take {stored / 2**30:.1f} GiB, and {self.device} has {free / 2**30:.1f} free: they '
              'stay in host memory', file=sys.stderr)
        return True


def finite(_ids, scores):
    """Each step's scores; of NaN no token can be drawn."""
    if torch.isnan(scores).any():
        raise Failure('the model\'s outputs are not numbers (NaN), as those of weights that have diverged are: use an '
                      'older checkpoint')
    return scores


# ---- tokens ----

class Text:
    """Those of a tokenizer."""

    def __init__(self, transformers, tokenizer):
        self.streamers = transformers.TextStreamer
        self.tokenizer = tokenizer
        self.padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def encode(self, text):
        return trying('the tokenizer fails', self.tokenizer, text)['input_ids']

    def streamer(self, give):
        class Streamer(self.streamers):
            def on_finalized_text(self, text, stream_end=False):
                if text:
                    give(text)
        return Streamer(self.tokenizer, skip_special_tokens=True)


class Bytes:
    """A model's of elixir-train whose tokens are the bytes of a text."""

    padding = None

    @staticmethod
    def encode(text):
        return list(text.encode())

    @staticmethod
    def streamer(give):
        decoder = codecs.getincrementaldecoder('utf-8')('backslashreplace')

        class Streamer:
            def put(self, ids):
                text = decoder.decode(bytes(ids.flatten().tolist()))
                if text:
                    give(text)

            def end(self):
                text = decoder.decode(b'', final=True)
                if text:
                    give(text)
        return Streamer()


# ---- the command ----

def printable(text):
    """No output controls a terminal."""
    return ''.join(character if character in '\n\t' or unicodedata.category(character) != 'Cc'
                   else f'\\x{ord(character):02x}' for character in text)


def parser_of(program):
    parser = argparse.ArgumentParser(prog=program, description=__doc__, usage=f'{program} [options] MODEL PROMPT',
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('model', metavar='MODEL')
    parser.add_argument('prompt', metavar='PROMPT')
    parser.add_argument('--max-tokens', metavar='N', type=int, default=200, help='most tokens that are added (200)')
    parser.add_argument('--temperature', metavar='T', type=float, default=0.8,
                        help='how freely tokens are drawn; 0: the likeliest, always (0.8)')
    parser.add_argument('--top-k', metavar='K', type=int, default=0,
                        help='draws from so many likeliest tokens (0: all)')
    parser.add_argument('--top-p', metavar='P', type=float, default=1.0,
                        help='draws from the likeliest tokens that have this probability together (1: all)')
    parser.add_argument('--seed', metavar='S', type=int, default=1, help='chooses what is drawn (1)')
    parser.add_argument('--tokenizer', metavar='FOLDER', help='the folder of the tokenizer, where MODEL has none')
    parser.add_argument('--device', metavar='DEVICE', default='auto',
                        help='cpu, cuda, cuda:1 (auto: a GPU if there is one)')
    parser.add_argument('--dtype', metavar='TYPE', default='auto', choices=('auto', 'fp32', 'bf16', 'fp16'),
                        help='the type to compute in: auto (as stored), fp32, bf16, fp16')
    parser.add_argument('--offload', action='store_true', default=None,
                        help='keeps the weights in host memory, with elixird')
    parser.add_argument('--gpu-memory', metavar='SIZE',
                        help='with --offload: device memory for everything, as in 24GiB')
    parser.add_argument('--rcache-blocks', metavar='N', type=int,
                        help='with --offload: chunks of weights on the device at a time (a quarter of them)')
    return parser


def main(words=None, program=f'python -m {NAME}') -> int:
    given = vars(parser_of(program).parse_args(words))

    def show(text):
        print(printable(text), end='', flush=True)

    def command():
        transformers = _command.need('transformers', NAME)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if given['prompt'] == '-':
            given['prompt'] = sys.stdin.read()
        generate(**given, on_text=show)
        print()
    return _command.run(NAME, command)


if __name__ == '__main__':
    sys.exit(main())
