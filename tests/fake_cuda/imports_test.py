"""The fake offers every function of libcudart and cuBLAS that LibTorch and Elixir import: one that a
new torch would add is named here, before a training meets it.

    imports_test.py LIBRARY_OF_THE_FAKE LIBRARY..."""

import subprocess
import sys


def symbols(library, *flags):
    listed = subprocess.run(['nm', '--dynamic', *flags, library], check=True, capture_output=True,
                            text=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def main(fake, *libraries):
    offered = {name.split('@')[0] for name in symbols(fake, '--defined-only')}
    missing = {}
    for library in libraries:
        for symbol in symbols(library, '--undefined-only'):
            name, _, version = symbol.partition('@')
            if version.startswith(('libcudart', 'libcublas')) and name not in offered:
                missing.setdefault(library, []).append(name)
    for library, names in missing.items():
        print(f'{library} imports what the fake lacks: {" ".join(names)}')
    imported = sum(len(symbols(library, '--undefined-only')) for library in libraries)
    if imported == 0:
        print('no library imports anything: is this nm that of these libraries?')
        return 1
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
