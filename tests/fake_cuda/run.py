#!/usr/bin/env python3
"""Runs a command over the fake CUDA runtime, in a mount namespace of its own whose /dev has ordinary
files in the place of GPUs.

    run.py [NAME=VALUE ...] [--] COMMAND ...

NAME=VALUE sets FAKE_CUDA_NAME (README.md lists them). Ends as the command does, or, where no
namespace may be made, with 77 and the reason. As root, or in a user namespace as its root.
"""

import os
import re
import subprocess
import sys

SKIPPED = 77
HERE = os.path.dirname(os.path.realpath(__file__))
BUILT = os.path.join(HERE, '..', '..', 'build', 'release', 'tests', 'fake_cuda', 'lib')
LIBRARIES = os.path.realpath(os.environ.get('ELIXIR_FAKE_CUDA_LIB', BUILT))

# /dev anew: what programs need of it, and as many GPUs as asked for.
MAKE_DEV = '''
set -e
gpus=$1; shift
dev=$(mktemp -d)
mount -t tmpfs -o mode=755 none "$dev"
for node in null zero full random urandom tty; do
  [ -e /dev/$node ] && touch "$dev/$node" && mount --bind /dev/$node "$dev/$node"
done
for folder in shm pts; do
  [ -d /dev/$folder ] && mkdir "$dev/$folder" && mount --rbind /dev/$folder "$dev/$folder"
done
[ -e /dev/pts/ptmx ] && ln -s pts/ptmx "$dev/ptmx"
ln -s /proc/self/fd "$dev/fd"
for i in 0 1 2; do ln -s /proc/self/fd/$i "$dev/$(echo stdin stdout stderr | cut -d' ' -f$((i + 1)))"; done
i=0; while [ $i -lt $gpus ]; do touch "$dev/nvidia$i"; i=$((i + 1)); done
mount --rbind "$dev" /dev
umount -l "$dev"
rmdir "$dev"
export LD_PRELOAD="$FAKE_CUDA_PRELOAD" LD_LIBRARY_PATH="$FAKE_CUDA_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$@"
'''


def unshare():
    """The command that makes the namespace."""
    as_root = [] if os.getuid() == 0 else ['--user', '--map-root-user']
    return ['unshare', *as_root, '--mount', '--propagation', 'private']


def skip_reason():
    """Why nothing can be run here; None where it can."""
    probe = [*unshare(), 'sh', '-c', 'd=$(mktemp -d) && mount -t tmpfs none $d && umount $d && rmdir $d']
    try:
        tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 'unshare is not installed (util-linux)'
    if tried.returncode == 0:
        return None
    return ('a mount namespace cannot be made here, as root or in a user namespace: '
            + tried.stderr.strip())


def main(words):
    settings = {}
    while words and re.fullmatch(r'[A-Z][A-Z0-9_]*=.*', words[0]):
        name, value = words.pop(0).split('=', 1)
        settings['FAKE_CUDA_' + name] = value
    if words and words[0] == '--':
        words.pop(0)
    if not words:
        sys.exit(__doc__)
    reason = skip_reason()
    if reason:
        print(f'skipped: {reason}')
        return SKIPPED
    preload = [os.path.join(LIBRARIES, name) for name in ('libfakecuda.so', 'libfakenccl.so')]
    preload = [path for path in preload if os.path.exists(path)]
    if not preload:
        print(f'run.py: there is no {LIBRARIES}/libfakecuda.so; build it first', file=sys.stderr)
        return 2
    environment = {**os.environ, **settings, 'FAKE_CUDA_FOLDER': LIBRARIES,
                   'FAKE_CUDA_PRELOAD': ':'.join(preload)}
    gpus = environment.get('FAKE_CUDA_DEVICES', '1')
    command = [*unshare(), 'sh', '-c', MAKE_DEV, 'sh', gpus, *words]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)
    return 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
