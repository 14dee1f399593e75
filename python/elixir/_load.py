"""Finds the compiled part that fits the torch of this process."""

import glob
import importlib.machinery
import importlib.util
import os
import re
import sys

try:
    import torch
except ImportError as missing:
    raise ImportError("import elixir: there is no torch here: pip install 'torch>=2.11,<2.16'") from missing

HERE = os.path.dirname(os.path.abspath(__file__))  # in a build these are links to the sources


def libraries():
    """The folder of each torch for which there is a compiled part: {"2.11": ".../lib/torch211"}."""
    found = {}
    for folder in glob.glob(os.path.join(HERE, 'lib', 'torch2*')):
        minor = re.fullmatch(r'torch2(\d+)', os.path.basename(folder))
        if minor:
            found[f'2.{minor.group(1)}'] = folder
    return found


def load():
    has = '.'.join(torch.__version__.split('.')[:2])
    known = libraries()
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    paths = [os.path.join(known[has], '_C' + suffix) for suffix in suffixes] if has in known else []
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        built = ', '.join(sorted(known, key=lambda minor: int(minor.split('.')[1]))) or 'none'
        raise ImportError(
            f'import elixir: have torch {torch.__version__} and Python {sys.version_info.major}.{sys.version_info.minor}, '
            f'need torch {built} (this elixir was built for it): install that torch, or build for yours: '
            'pip install --no-build-isolation --no-binary elixir-train elixir-train')
    loader = importlib.machinery.ExtensionFileLoader('elixir._C', path)
    spec = importlib.util.spec_from_file_location('elixir._C', path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules['elixir._C'] = module
    loader.exec_module(module)
    return module


native = load()
Error = native.Error
version = native.version
# Programs of the package, which elixird's starter and elixir.status() look for beside the library.
BIN = os.path.join(HERE, 'bin')
