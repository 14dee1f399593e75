"""The fake offers every function of libcudart and cuBLAS that LibTorch and Elixir import: one that a
new torch would add is named here, before a training meets it.

    imports_test.py [--prefix PREFIX] LIBRARY_OF_THE_FAKE LIBRARY...

PREFIX: of the names that count, for a library whose symbols have no version (nccl)."""

import subprocess
import sys


def symbols(library, *flags):
    listed = subprocess.run(['nm', '--dynamic', *flags, library], check=True, capture_output=True,
                            text=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def main(*words):
    prefix = None
    if words[0] == '--prefix':
        _, prefix, *words = words
    fake, *libraries = words

    def counts(name, version):
        return name.startswith(prefix) if prefix else version.startswith(('libcudart', 'libcublas'))

    offered = {name.split('@')[0] for name in symbols(fake, '--defined-only')}
    missing = {}
    imported = 0
    for library in libraries:
        for symbol in symbols(library, '--undefined-only'):
            name, _, version = symbol.partition('@')
            imported += counts(name, version)
            if counts(name, version) and name not in offered:
                missing.setdefault(library, []).append(name)
    for library, names in missing.items():
        print(f'{library} imports what the fake lacks: {" ".join(names)}')
    if imported == 0:
        print('no library imports anything of it: is this nm that of these libraries?')
        return 1
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
