#!/usr/bin/env python3
"""Runs python -m elixir.tokenize without a build of `import elixir`: with any Python that has transformers.

    scripts/tokenize_text.py TOKENIZER TEXT... OUT

--help lists everything. python/elixir/tokenize.py is the program.
"""

import importlib
import os
import sys
import types

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))


def tokenize_module():
    """elixir.tokenize of the sources, whose package's own start would need torch and the compiled part."""
    package = types.ModuleType('elixir')
    package.__path__ = [os.path.join(ROOT, 'python', 'elixir')]
    sys.modules['elixir'] = package
    return importlib.import_module('elixir.tokenize')


if __name__ == '__main__':
    sys.exit(tokenize_module().main(program='scripts/tokenize_text.py'))
