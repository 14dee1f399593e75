"""clang's thread annotations (base/mutex.h) hold in the sources that include LibTorch, which the preset asan, whose
compiler checks all others, does not build."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
BUILD = os.path.dirname(os.environ.get('ELIXIR_BIN_DIR', os.path.join(REPOSITORY, 'build', 'release', 'bin')))
COMMANDS = os.path.join(BUILD, 'compile_commands.json')
# client/profile last: its own NamedTensor would be ambiguous in headers that come after it.
ROOMS = ('client/train', 'client/collectives', 'client/profile')


def flags():
    """What says where headers are, of the source that has the most of them; [] without LibTorch."""
    with open(COMMANDS, encoding='utf-8') as file:
        entries = [e['command'] for e in json.load(file) if '/client/collectives/' in e['file']]
    command = shlex.split(max(entries, key=len, default=''))
    kept = []
    for i, word in enumerate(command):
        if word.startswith(('-I', '-D', '-std=')):
            kept.append(word)
        elif word == '-isystem':
            kept += command[i:i + 2]
    return kept


def refusals(*folders):
    """What clang says of all sources of the folders, as one: LibTorch's headers are read once."""
    sources = [os.path.join(folder, name)
               for folder in folders for name in sorted(os.listdir(folder)) if name.endswith('.cpp')]
    text = ''.join(f'#include "{source}"\n' for source in sources)
    done = subprocess.run(['clang++', *flags(), '-DUSE_C10D_GLOO', '-fsyntax-only', '-Wthread-safety',
                           '-Werror=thread-safety', '-x', 'c++', '-'], input=text, capture_output=True, text=True)
    if done.returncode == 0:
        return ''
    return '\n'.join(line for line in done.stderr.splitlines() if 'error:' in line) or done.stderr


@unittest.skipUnless(shutil.which('clang++') and os.path.exists(COMMANDS) and flags(),
                     'clang++ or a build with LibTorch is missing; scripts/setup.sh installs the first')
class Locks(unittest.TestCase):
    def test_what_a_mutex_guards_is_read_and_written_under_it(self):
        self.assertEqual(refusals(*(os.path.join(REPOSITORY, room) for room in ROOMS)), '')

    def test_a_lock_that_is_left_out_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'engine_gradients.cpp')
            shutil.copy(os.path.join(REPOSITORY, 'client', 'train', 'engine_gradients.cpp'), path)
            with open(path, encoding='utf-8') as file:
                text = file.read()
            # Of take_assigned().
            planted, count = re.subn(r'  const MutexLock lock\(mutex_\);\n(  return taken_->take\()', r'\1', text)
            self.assertEqual(count, 1)
            with open(path, 'w', encoding='utf-8') as file:
                file.write(planted)
            self.assertIn("'taken_' requires holding mutex", refusals(folder))


if __name__ == '__main__':
    unittest.main()
