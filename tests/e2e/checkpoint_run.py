"""Runs with checkpoints, for the tests beside: how they are started, and what they leave."""

import ctypes
import glob
import json
import os

import harness
from harness import TINY, program, text_of

TRAIN = program('elixir-train')
STEPS = ['--steps', '20', '--checksum', '--log-every', '1']
DROPOUT = ['--dropout', '0.1']
MODEL = 'model-00001-of-00001.safetensors'
OPTIMIZER = 'optimizer/optimizer-00001-of-00001.safetensors'


def step_names(folder):
    """All checkpoints, also those that are being written or were left behind: step-N.tmp-PID-I."""
    return sorted(os.path.basename(path) for path in glob.glob(os.path.join(folder, 'step-*')))


def whole_step_names(folder):
    return [name for name in step_names(folder) if '.tmp-' not in name]


def name_of(step):
    return f'step-{step:09}'


def contents(folder):
    """name -> bytes of all files below, except the lock, which says who held it last."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in set(names) - {'.elixir-lock'}:
            path = os.path.join(parent, name)
            with open(path, 'rb') as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def xxh3(data):
    library = ctypes.CDLL('libxxhash.so.0')
    library.XXH3_64bits.restype = ctypes.c_uint64
    return f'{library.XXH3_64bits(ctypes.c_char_p(data), ctypes.c_size_t(len(data))):016x}'


def replace_file(checkpoint, name, data):
    """Another file in the place of one, with a manifest that fits: nothing is damaged."""
    with open(os.path.join(checkpoint, name), 'wb') as file:
        file.write(data)
    path = os.path.join(checkpoint, 'elixir.json')
    manifest = json.loads(text_of(path))['manifest']
    for entry in manifest['files']:
        if entry['name'] == name:
            entry.update(bytes=len(data), pieces=[[len(data), xxh3(data)]])
    inner = json.dumps(manifest, separators=(',', ':'))
    with open(path, 'w', encoding='utf-8') as file:
        file.write(f'{{"manifest":{inner},"xxh3":"{xxh3(inner.encode())}"}}\n')


class Checkpoint(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_elixird()
        self.checkpoints = os.path.join(self.folder, 'checkpoints')

    def tearDown(self):
        if not self.daemon.ended():
            self.stop_elixird(self.daemon)
        super().tearDown()

    def train(self, ranks, *flags, **how):
        command = self.launch(ranks, TRAIN) if ranks > 1 else [TRAIN]
        return self.succeed(command, TINY, STEPS, flags, limit_s=120, **how)

    def at(self, step):
        return os.path.join(self.checkpoints, name_of(step))

    def left(self):
        """The names in the folder of checkpoints, but for hidden ones."""
        return [name for name in sorted(os.listdir(self.checkpoints)) if not name.startswith('.')]

    def saved(self, *flags, ranks=1):
        """A finished run with checkpoints of steps 8, 16 and 20."""
        return self.train(ranks, flags, '--checkpoints', self.checkpoints, '--save-every', '8')
