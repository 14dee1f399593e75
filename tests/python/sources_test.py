"""What `pip install --no-build-isolation .` reads: the metadata, the files, and a build that can be configured."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unittest

import python_case

python_case.need('scikit_build_core')

REPOSITORY = os.path.realpath(os.path.join(python_case.HERE, '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import pack_wheel  # noqa: E402  (where it is, is known only now)

FIELDS = ('Name', 'Version', 'Summary', 'Requires-Python', 'Provides-Extra', 'Requires-Dist', 'License-Expression')


def fields_of(text):
    message = email.message_from_string(text)
    return {name: sorted(re.sub(r'\s+|;|[\'"]', '', value) for value in message.get_all(name, [])) for name in FIELDS}


class Sources(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix='elixir-sources-test-')
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        packed = cls.hook('build_sdist', REPOSITORY)
        with tarfile.open(os.path.join(cls.folder, packed)) as file:
            file.extractall(cls.folder)
        cls.sources = os.path.join(cls.folder, packed.removesuffix('.tar.gz'))
        with open(os.path.join(cls.sources, 'pyproject.toml'), 'rb') as file:
            cls.settings = tomllib.load(file)['tool']['scikit-build']

    @classmethod
    def hook(cls, name, where):
        """Calls the builder as pip does: its answer is the name of a file or folder."""
        program = f'import scikit_build_core.build as build; print(build.{name}({cls.folder!r}))'
        done = subprocess.run([sys.executable, '-B', '-c', program], cwd=where, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return done.stdout.splitlines()[-1]

    def test_the_metadata_is_that_of_the_packed_wheel(self):
        made = self.hook('prepare_metadata_for_build_wheel', self.sources)
        with open(os.path.join(self.folder, made, 'METADATA'), encoding='utf-8') as file:
            theirs = fields_of(file.read())
        self.assertEqual(fields_of(pack_wheel.metadata(pack_wheel.project())), theirs)
        self.assertEqual(theirs['License-Expression'], ['Apache-2.0'])

    def test_all_sources_are_there(self):
        listed = subprocess.run(['git', 'ls-files'], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            self.skipTest('this is no clone')
        rooms = [path for path in listed.stdout.splitlines()
                 if not path.startswith(('.', 'bench/', 'docs/', 'tests/'))]
        self.assertGreater(len(rooms), 500)
        missing = [path for path in rooms if os.path.exists(os.path.join(REPOSITORY, path))  # else removed, not committed
                   and not os.path.exists(os.path.join(self.sources, path))]
        self.assertEqual(missing, [])

    def test_the_build_is_configured_for_this_torch(self):
        import torch
        build = os.path.join(self.folder, 'build')
        defines = [f'-D{name}={value}' for name, value in self.settings['cmake']['define'].items()]
        done = subprocess.run(
            ['cmake', '-G', 'Ninja', '-S', self.sources, '-B', build, '-DSKBUILD=2',
             f'-DPython3_EXECUTABLE={sys.executable}', *defines], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f'({os.path.dirname(torch.__file__)})', done.stdout)
        targets = self.settings['build']['targets']
        done = subprocess.run(['ninja', '-C', build, '-n', *targets], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for made in ('python/elixir/lib/torch2', 'bin/elixird', 'bin/elixirctl', 'bin/elixir-run'):
            self.assertIn(made, done.stdout)
        self.assertRegex(done.stdout, r'libelixir\.so\.0\.\d+\b')
        self.assertNotRegex(done.stdout, r'libelixir\.so\.0\.\d+\.', 'twice in a wheel')
        with open(os.path.join(build, 'python', 'cmake_install.cmake'), encoding='utf-8') as file:
            installed = file.read()
        for component in self.settings['install']['components']:
            self.assertIn(f'CMAKE_INSTALL_COMPONENT STREQUAL "{component}"', installed)


if __name__ == '__main__':
    unittest.main()
