"""Finds the compiled part that fits the torch of this process."""

import glob
import importlib.machinery
import importlib.util
import os
import re
import sys
from typing import TYPE_CHECKING

OLDEST, NEWEST = 11, 15  # minor versions of torch 2 that it can be built for, as cmake/FindLibTorch.cmake has them

try:
    import torch
except ImportError as missing:
    raise ImportError('import elixir: there is no torch here: '
                      f"pip install 'torch>=2.{OLDEST},<2.{NEWEST + 1}'") from missing

HERE = os.path.dirname(os.path.abspath(__file__))  # in a build these are links to the sources
SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # of a build


def libraries():
    """The folder of each torch for which there is a compiled part: {"2.11": ".../lib/torch211"}."""
    found = {}
    for folder in glob.glob(os.path.join(HERE, 'lib', 'torch2*')):
        minor = re.fullmatch(r'torch2(\d+)', os.path.basename(folder))
        if minor:
            found[f'2.{minor.group(1)}'] = folder
    return found


def built_for():
    """What there is a compiled part for: ["torch 2.11 with Python 3.11"]."""
    pairs = []
    for minor, folder in libraries().items():
        for path in glob.glob(os.path.join(folder, '_C.*.so')):
            python = re.search(r'cpython-(\d)(\d+)', path)
            pairs.append((minor, f'{python[1]}.{python[2]}' if python else '3'))
    pairs.sort(key=lambda pair: [int(number) for version in pair for number in version.split('.')])
    return [f'torch {minor} with Python {python}' for minor, python in pairs]


def what_does_not_fit():
    """One line: what there is, what is needed, and the command."""
    has = f'torch {torch.__version__} and Python {sys.version_info.major}.{sys.version_info.minor}'
    built = ' or '.join(built_for())
    needs = f'{built} (this elixir was built for it)' if built else 'a build of elixir, and none is here'
    folder = SOURCES if os.path.exists(os.path.join(SOURCES, 'pyproject.toml')) else 'FOLDER'
    build = f'build elixir for yours: pip install scikit-build-core && pip install --no-build-isolation {folder}'
    if folder == 'FOLDER':
        build += ', where FOLDER has the sources of elixir'
    known = re.match(r'2\.(\d+)\.', torch.__version__)
    if not known or not OLDEST <= int(known[1]) <= NEWEST:
        build = f"install one that elixir can be built for: pip install 'torch>=2.{OLDEST},<2.{NEWEST + 1}'"
    return f'import elixir: have {has}, need {needs}: {"install that torch, or " if built else ""}{build}'


def load():
    has = '.'.join(torch.__version__.split('.')[:2])
    known = libraries()
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    paths = [os.path.join(known[has], '_C' + suffix) for suffix in suffixes] if has in known else []
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        raise ImportError(what_does_not_fit())
    loader = importlib.machinery.ExtensionFileLoader('elixir._C', path)
    spec = importlib.util.spec_from_file_location('elixir._C', path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules['elixir._C'] = module
    loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from elixir import _C
    native = _C
else:
    native = load()
Error = native.Error
version = native.version
"""The version of Elixir, such as "0.1.0"."""
# Programs of the package, which elixird's starter and elixir.status() look for beside the library.
BIN = os.path.join(HERE, 'bin')
