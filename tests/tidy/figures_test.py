"""scripts/figures.py: its limits hold, and each of them fails on a planted breach."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import figures  # noqa: E402  (where it is, is known only now)


def checked(root):
    """The exit code of --check, and the names of the figures that do not hold."""
    shown = io.StringIO()
    with mock.patch('sys.argv', ['figures.py', '--check', '--root', root]), contextlib.redirect_stdout(shown):
        code = figures.main()
    return code, {line.split()[0] for line in shown.getvalue().splitlines() if 'does not hold' in line}


# What --check must refuse: the figure -> the files that break it, with their text. '+' adds to a file.
MEMBERS = '\n'.join(f'  int {name} = 0;' for name in ('alpha_bytes', 'beta_bytes', 'gamma_bytes', 'delta_bytes'))
PLANTED = {
    'exchange_holders': {f'base/planted_{i}.h': f'struct Planted{i} {{\n  Exchange exchange;\n}};\n' for i in range(5)},
    'exchange_enums': {'base/planted.h': 'enum class PlantedExchange { kA };\n'},
    'mirrored_structs': {f'base/planted_{i}.h': f'struct Planted{i} {{\n{MEMBERS}\n}};\n' for i in range(12)},
    'rooms_in_cycles': {'base/planted.h': '#include "shm/shape.h"\n'},
    'layer_exceptions': {'docs/design/layers.md': '+| `base` (`planted`) | | | |\n'},
    'public_closure': {'base/export.h': '+' + ''.join(f'#include "base/planted_{i}.h"\n' for i in range(20)),
                       **{f'base/planted_{i}.h': '\n' for i in range(20)}},
    'sanitized_client_percent': {'client/train/planted.cpp': 'int planted;\n' * 4000},
    'checks_a_kloc': {f'daemon/planted_{i}.cpp': 'int planted;\n' * 390 for i in range(60)},
    'untested_exchange_sources': {'client/exchange/planted.cpp': 'int planted;\n'},
    'largest_class': {'base/planted.h': 'class Planted {\n' + '  int planted();\n' * 1900 + '};\n'},
    'file_median': {f'base/planted_{i}.cpp': 'int planted;\n' * 390 for i in range(200)},
    'largest_file': {'base/planted.cpp': 'int planted;\n' * 401},
    'long_functions': {'base/planted.cpp': 'void f() {\n' + '  g();\n' * 70 + '}\n'},
}


class Figures(unittest.TestCase):
    def test_the_limits_hold(self):
        code, broken = checked(REPOSITORY)
        self.assertEqual((code, broken), (0, set()))

    def test_each_limit_has_a_planted_breach(self):
        self.assertEqual(set(PLANTED), {name for name, row in figures.FIGURES.items() if row[1]})

    def test_a_planted_breach_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            root = os.path.join(folder, 'tree')
            kept = [path for path in subprocess.run(['git', 'ls-files'], cwd=REPOSITORY, check=True, text=True,
                                                    capture_output=True).stdout.splitlines()
                    if path.endswith(('.h', '.cpp', '.cu', '.py', '.sh', '.txt', 'layers.md', 'tests.md'))]
            for path in kept:
                if os.path.isfile(os.path.join(REPOSITORY, path)):
                    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                    shutil.copy(os.path.join(REPOSITORY, path), os.path.join(root, path))
            subprocess.run(['git', 'init', '-q'], cwd=root, check=True)
            subprocess.run(['git', 'add', '-A'], cwd=root, check=True)
            self.assertEqual(checked(root), (0, set()), 'the copy itself')
            for name, files in PLANTED.items():
                with self.subTest(figure=name):
                    self.assert_refused(root, name, files)

    def assert_refused(self, root, name, files):
        before = {}
        for path, text in files.items():
            path = os.path.join(root, path)
            before[path] = None
            if os.path.isfile(path):
                with open(path, encoding='utf-8') as file:
                    before[path] = file.read()
            with open(path, 'w', encoding='utf-8') as file:
                file.write((before[path] or '') + text[1:] if text.startswith('+') else text)
        subprocess.run(['git', 'add', '-A'], cwd=root, check=True)
        code, broken = checked(root)
        self.assertEqual(code, 1)
        self.assertIn(name, broken)
        for path, text in before.items():
            if text is None:
                os.unlink(path)
            else:
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
        subprocess.run(['git', 'add', '-A'], cwd=root, check=True)


class WhatIsCounted(unittest.TestCase):
    def test_a_class_is_counted_over_all_of_its_files(self):
        tree = figures.Tree.__new__(figures.Tree)
        tree.divided = set()
        tree.text = {'a/b.h': 'class B {\n public:\n  int f();\n};\n',
                     'a/b.cpp': 'int B::f() {\n  return 1;\n}\n',
                     'a/more.cpp': 'std::vector<int> B::g() const {\n  return {};\n}\nint h() {\n  return 2;\n}\n'}
        tree.product = list(tree.text)
        self.assertEqual(figures.class_lines(tree), {('a', 'B'): 3 + 3 + 3})

    def test_members_by_which_threads_take_turns_are_no_data(self):
        tree = figures.Tree.__new__(figures.Tree)
        members = '\n'.join(f'  int {name}_ = 0;' for name in ('mutex', 'changed', 'stopping', 'done', 'bytes'))
        tree.text = {f'a/{name}.h': f'class {name} {{\n{members}\n}};\n' for name in ('b', 'c')}
        tree.product = list(tree.text)
        self.assertEqual(figures.mirrored_structs(tree), [])


if __name__ == '__main__':
    unittest.main()
