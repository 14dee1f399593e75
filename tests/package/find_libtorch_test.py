"""Which torch cmake/FindLibTorch.cmake takes, and what it says of one that does not fit: with made-up wheels."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))

PROJECT = '''
cmake_minimum_required(VERSION 3.25)
project(any NONE)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH %s/cmake)
find_package(LibTorch REQUIRED)
message(STATUS "taken: ${LIBTORCH_ROOT} ${LibTorch_VERSION} ${ELIXIR_TORCH_FOLDER}")
'''


class FindLibTorch(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp(prefix='elixir-find-libtorch-')
        self.addCleanup(subprocess.run, ['rm', '-r', self.home], check=False)
        self.source = os.path.join(self.home, 'project')
        self.write(os.path.join(self.source, 'CMakeLists.txt'), PROJECT % REPOSITORY)
        # A python3 that has no torch, whatever this machine's has.
        self.python3 = os.path.join(self.home, 'bin', 'python3')
        self.write(self.python3, '#!/bin/sh\necho "$MADE_UP_TORCH"\n', 0o755)

    def write(self, path, text, mode=0o644):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(path, mode)

    def wheel(self, environment, version='2.11.0'):
        """The torch folder of a made-up environment in this test's folder."""
        folder = os.path.join(self.home, environment, 'lib', 'python3.11', 'site-packages', 'torch')
        for name in ('include/ATen/ATen.h', 'lib/libtorch_cpu.so', 'lib/libc10.so'):
            self.write(os.path.join(folder, name), '')
        self.write(os.path.join(folder, 'version.py'), f"__all__ = []\n__version__ = '{version}+cu130'\n")
        os.makedirs(os.path.join(folder, 'share', 'cmake'), exist_ok=True)
        return folder

    def configure(self, *flags, **environment):
        known = {name: value for name, value in os.environ.items() if name not in ('VIRTUAL_ENV', 'CMAKE_PREFIX_PATH')}
        known['PATH'] = os.path.dirname(self.python3) + os.pathsep + known['PATH']
        return subprocess.run(
            ['cmake', '-S', self.source, '-B', tempfile.mkdtemp(dir=self.home), *flags],
            capture_output=True, text=True, check=False, env={**known, **environment})

    def taken(self, *flags, **environment):
        finished = self.configure(*flags, **environment)
        found = re.search(r'taken: (\S+) (\S+) (\S+)', finished.stdout)
        self.assertTrue(found, finished.stdout + finished.stderr)
        return found.groups()

    def refused(self, *flags, **environment):
        """The error. cmake breaks lines; it is one."""
        finished = self.configure(*flags, **environment)
        self.assertNotEqual(finished.returncode, 0, finished.stdout)
        paragraph = re.search(r'\n  (Elixir: .*?)\n(?:Call Stack|\n)', finished.stderr, re.S)
        self.assertTrue(paragraph, finished.stderr)
        return re.sub(r'\s+', ' ', paragraph.group(1))

    def test_the_order(self):
        places = {name: self.wheel(name) for name in ('named', 'prefix', 'active', 'project/.venv', 'python')}
        flags = [f'-DLIBTORCH_ROOT={places["named"]}', f'-DCMAKE_PREFIX_PATH={places["prefix"]}']
        environment = {'VIRTUAL_ENV': os.path.join(self.home, 'active'), 'MADE_UP_TORCH': places['python']}
        self.assertEqual(self.taken(*flags, **environment)[0], places['named'])
        self.assertEqual(self.taken(flags[1], **environment)[0], places['prefix'])
        cmake_prefix = f'-DCMAKE_PREFIX_PATH={places["prefix"]}/share/cmake'  # torch.utils.cmake_prefix_path
        self.assertEqual(self.taken(cmake_prefix, **environment)[0], places['prefix'])
        self.assertEqual(self.taken(**environment)[0], places['active'])
        del environment['VIRTUAL_ENV']
        self.assertEqual(self.taken(**environment)[0], places['project/.venv'])
        os.rename(os.path.join(self.source, '.venv'), os.path.join(self.source, 'away'))
        self.assertEqual(self.taken(**environment)[0], places['python'])

    def test_an_active_environment_without_torch_is_passed_over(self):
        os.makedirs(os.path.join(self.home, 'active', 'lib', 'python3.11', 'site-packages'))
        own = self.wheel('project/.venv')
        self.assertEqual(self.taken(VIRTUAL_ENV=os.path.join(self.home, 'active'))[0], own)

    def test_every_release_of_the_range_is_taken(self):
        for minor in range(11, 16):
            folder = self.wheel(f'torch{minor}', f'2.{minor}.1')
            self.assertEqual(self.taken(f'-DLIBTORCH_ROOT={folder}'), (folder, f'2.{minor}.1', f'torch2{minor}'))

    def test_one_outside_the_range_is_one_line_with_have_need_and_remedy(self):
        for version in ('2.10.1', '2.16.0', '2.99.0', '3.0.0', '1.13.1'):
            folder = self.wheel(version, version)
            said = self.refused(f'-DLIBTORCH_ROOT={folder}')
            self.assertEqual(
                said, f"Elixir: have torch '{version}' ({folder}), need 2.11 to 2.15: pip install torch==2.15.0, or "
                'name another torch folder with -DLIBTORCH_ROOT=.../site-packages/torch')

    def test_no_torch_at_all(self):
        for flags in ([], ['-DLIBTORCH_ROOT=/nowhere']):
            self.assertRegex(self.refused(*flags), r'no LibTorch is found.*-DLIBTORCH_ROOT=.*setup\.sh')


if __name__ == '__main__':
    sys.exit(unittest.main())
