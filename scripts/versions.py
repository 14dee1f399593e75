#!/usr/bin/env python3
"""Versions that two binaries compare before they trust one another's memory, and the headers that
each stands for: when a header changes, so must the version.

    scripts/versions.py                 says which hold; exit code 1 if one does not
    scripts/versions.py --store         after the version was raised: stores the headers' hash beside it
    scripts/versions.py --store --same  where no byte of memory or messages differs (a function was
                                        added, a name changed): stores it for the same version
    scripts/versions.py --newest        asks pip which torch is the newest; exit code 1 if that is newer
                                        than the one that scripts/setup.sh pins and CI builds for

A hash is of the code alone: comments and white space do not count.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import typing

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))


class Version(typing.NamedTuple):
    constant: str
    header: str   # where the constant stands, and its hash
    others: tuple


VERSIONS = (
    Version('kLayoutVersion', 'shm/layout.h',
            ('shm/shape.h', 'shm/messages.h', 'shm/step_rules.h', 'shm/exchange.h', 'shm/message.h',
             'shm/parameter_table.h', 'base/compute_type.h', 'base/norm_sum.h')),
    Version('kCudaLibraryVersion', 'client/torch_device/cuda_library.h',
            ('client/device/device.h', 'client/device/stream.h', 'optim_cpu/adam.h',
             'optim_cpu/adam_math.h', 'base/compute_type.h', 'base/status.h')),
)

# Strings stay, comments and white space go.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")|(\s+)', re.S)
STORED = re.compile(r'^// versions\.py: version (\d+), ([0-9a-f]{16})$', re.M)


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def constant_in(version):
    return re.compile(r'(\b' + version.constant + r'\s*=\s*)(\d+)')


def normalised(text):
    return TOKEN.sub(lambda match: match.group(1) or '', text)


def hash_of(version, root=ROOT):
    """Of the headers without the version itself."""
    whole = hashlib.sha256()
    for path in (version.header, *version.others):
        text = constant_in(version).sub(r'\1', read(root, path))
        whole.update(f'{path}\0{normalised(text)}\0'.encode())
    return whole.hexdigest()[:16]


def number_of(version, root=ROOT):
    return int(constant_in(version).search(read(root, version.header)).group(2))


def stored(version, root=ROOT):
    """(number, hash) as the header has them, or None."""
    match = STORED.search(read(root, version.header))
    return (int(match.group(1)), match.group(2)) if match else None


def complaint(version, root=ROOT):
    """What is wrong and what mends it, or ''."""
    number, known = number_of(version, root), stored(version, root)
    if known == (number, hash_of(version, root)):
        return ''
    headers = ', '.join((version.header, *version.others))
    if known is not None and known[0] == number:
        return (f'a header that {version.constant} = {number} stands for has changed ({headers}): raise '
                f'{version.constant} in {version.header}, then run scripts/versions.py --store to store the '
                'new hash; where no byte of memory or messages differs, scripts/versions.py --store --same')
    return (f'{version.header} has no hash of {version.constant} = {number} ({headers}): '
            'run scripts/versions.py --store')


def store(version, same, root=ROOT):
    """Writes number and hash beside the constant; says why it does not, or ''."""
    if not complaint(version, root):
        return ''
    number, known = number_of(version, root), stored(version, root)
    if known is not None and number < known[0]:
        return f'{version.constant} is {number} and was {known[0]} before: raise it'
    if known is not None and number == known[0] and not same:
        return complaint(version, root)
    line = f'// versions.py: version {number}, {hash_of(version, root)}'
    text = read(root, version.header)
    if known is not None:
        text = STORED.sub(line, text)
    else:
        text = re.sub(r'(?m)^(.*\b' + version.constant + r'\b\s*=\s*\d+;.*)$', r'\1\n' + line, text, count=1)
    with open(os.path.join(root, version.header), 'w', encoding='utf-8') as file:
        file.write(text)
    return ''


def pinned_torch(root=ROOT):
    """The newest torch that CI builds for: (release, oldest minor, newest minor) as they are said in two places."""
    release = re.search(r'^NEWEST_TORCH=([0-9.]+)', read(root, 'scripts/setup.sh'), re.M).group(1)
    found = read(root, 'cmake/FindLibTorch.cmake')
    return (release, *(re.search(rf'^set\(ELIXIR_{which}_TORCH ([0-9.]+)\)', found, re.M).group(1)
                       for which in ('OLDEST', 'NEWEST')))


def complaint_of_newest(listed, pinned):
    """`listed`: what `pip index versions torch` prints."""
    found = re.search(r'^torch \(([0-9.]+)\)', listed, re.M)
    if not found:
        return f'pip names no release of torch: {listed.strip() or "it printed nothing"}'

    def parts(release):
        return [int(part) for part in release.split('.')]
    if parts(found.group(1)) <= parts(pinned):
        return ''
    return (f'torch {found.group(1)} is there, and {pinned} is the newest that Elixir is built for: raise NEWEST_TORCH in '
            'scripts/setup.sh and ELIXIR_NEWEST_TORCH in cmake/FindLibTorch.cmake, then run scripts/test.sh --nightly '
            'newest-torch')


def ask_newest():
    listed = subprocess.run([sys.executable, '-m', 'pip', 'index', 'versions', 'torch', '--disable-pip-version-check'],
                            capture_output=True, text=True, check=False)
    pinned = pinned_torch()[0]
    said = complaint_of_newest(listed.stdout or listed.stderr, pinned)
    print(f'torch {pinned}: {said or "is the newest"}')
    return 1 if said else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--store', action='store_true', help='store the hash of a version that was raised')
    parser.add_argument('--same', action='store_true', help='with --store: also where it was not raised')
    parser.add_argument('--newest', action='store_true', help='ask pip whether there is a newer torch')
    arguments = parser.parse_args()
    if arguments.newest:
        return ask_newest()
    wrong = 0
    for version in VERSIONS:
        said = store(version, arguments.same) if arguments.store else complaint(version)
        wrong += bool(said)
        print(f'{version.constant} {number_of(version)}: {said or "holds"}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
