"""What cmake --install leaves is a package: moved elsewhere, a project of somebody else finds it with
find_package(elixir), compiles against <elixir/elixir.h> and LibTorch alone, and trains."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import BIN, REPOSITORY  # noqa: E402

BUILD = os.path.realpath(os.path.join(BIN, '..'))
LIBTORCH = os.environ['ELIXIR_TEST_LIBTORCH']
OWN_TORCH = 'torch211'  # of the build that is installed
MOST_HEADERS = 15  # elixir.h among them

# What a program may use of libelixir.so, and the types of it that it may catch or derive from.
PUBLIC = re.compile(
    r'((vtable|typeinfo|typeinfo name) for )?elixir::'
    r'((AdamW|Adam|Optimizer|Consistent|Gathered|MetaInit|Saving|Error)(::.*)?|'
    r'(plan|activations_of|plan_json\[abi:cxx11\]|plan_from_json|checkpoint|linear_cross_entropy|save_model|'
    r'tensors_of|prepare_torch|materialise|readable|set_interrupt_check|remembers_its_values|code_name)\(.*)')

# Which libelixir.so a project gets.
SHOWING = '''
get_target_property(configurations elixir::elixir IMPORTED_CONFIGURATIONS)
get_target_property(location elixir::elixir IMPORTED_LOCATION_${configurations})
message(STATUS "linked: ${location}")
'''

LEAKING = '''
add_library(leaking OBJECT EXCLUDE_FROM_ALL leaking.cpp)
target_link_libraries(leaking PRIVATE elixir::elixir)
'''


def run(*command, **how):
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def exported(library):
    """The demangled names of what a shared library defines for others."""
    lines = run('nm', '-D', '--defined-only', '-C', library).stdout.splitlines()
    return [line.split(' ', 2)[2] for line in lines]


def run_path(file):
    found = re.search(r'R(?:UN)?PATH.*\[(.*)\]', run('readelf', '-d', file).stdout)
    return found.group(1) if found else ''


class Package(harness.ElixirTest):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp(prefix='elixir-package-')
        cls.installed = os.path.join(cls.home, 'installed')
        cls.prefix = os.path.join(cls.home, 'moved', 'there')
        finished = run('cmake', '--install', BUILD, '--prefix', cls.installed)
        if finished.returncode != 0:
            raise AssertionError(finished.stdout[-2000:] + finished.stderr[-2000:])
        os.mkdir(os.path.dirname(cls.prefix))
        os.rename(cls.installed, cls.prefix)
        # The documentation's own project with a program that learns, and a target that asks for what is
        # not public.
        cls.source = os.path.join(cls.home, 'source', 'your_project')
        shutil.copytree(os.path.join(REPOSITORY, 'examples', 'your_project'), cls.source)
        shutil.copy(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'learns.cpp'),
                    os.path.join(os.path.dirname(cls.source), 'your_model.cpp'))
        with open(os.path.join(cls.source, 'CMakeLists.txt'), 'a', encoding='utf-8') as file:
            file.write(LEAKING + SHOWING)
        with open(os.path.join(cls.source, 'leaking.cpp'), 'w', encoding='utf-8') as file:
            file.write('#include "base/status.h"\n')

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.home, ignore_errors=True)

    def configure(self, *flags, prefix=None, build=None):
        build = build or tempfile.mkdtemp(dir=self.home)
        return self.run_program(
            'cmake', '-S', self.source, '-B', build, '-G', 'Ninja', '-DCMAKE_BUILD_TYPE=Debug',
            '-DCMAKE_CXX_FLAGS_DEBUG=-O0', f'-DCMAKE_CXX_COMPILER={os.environ["ELIXIR_TEST_CXX"]}',
            f'-DCMAKE_PREFIX_PATH={prefix or self.prefix}', *flags)

    def refused(self, *flags, **how):
        finished = self.configure(*flags, **how)
        self.assertNotEqual(finished.exit_code, 0, str(finished))
        return re.sub(r'\s+', ' ', finished.errors)

    def test_a_project_trains_with_it(self):
        build = os.path.join(self.home, 'build')
        configured = self.configure(f'-DLIBTORCH_ROOT={LIBTORCH}', build=build)
        self.assertEqual(configured.exit_code, 0, str(configured))
        self.succeed('cmake', '--build', build, limit_s=600)

        learns = os.path.join(build, 'your_model')
        alone = self.succeed(learns)
        losses = [float(loss) for loss in re.findall(r'\bloss ([0-9.e+-]+)', alone.output)]
        self.assertGreater(len(losses), 3, str(alone))
        self.assertLess(losses[-1], 0.5 * losses[0], str(alone))
        # It started the elixird that stands beside the library.
        started = [os.readlink(f'/proc/{pid}/exe') for pid in self.processes('elixird')]
        self.assertEqual(started, [os.path.join(self.prefix, 'bin', 'elixird')])
        self.stop_idle_elixird()
        self.succeed(os.path.join(self.prefix, 'bin', 'elixir-run'), '-n', '2',
                     '--daemon-arg=--no-bandwidth-probe', learns)

        # An error of Elixir's is caught as what it is, on the program's side.
        failed = self.run_program(learns, environment={'ELIXIRD': '/nowhere/elixird'})
        self.assertEqual(failed.exit_code, 5, str(failed))
        self.assertIn('learns: unavailable: ', failed.errors)

        leaking = self.run_program('cmake', '--build', build, '--target', 'leaking')
        self.assertNotEqual(leaking.exit_code, 0, str(leaking))
        self.assertIn('base/status.h: No such file', leaking.all_text)

    def test_torch_is_found_by_the_prefix_path(self):
        for place in (LIBTORCH, os.path.join(LIBTORCH, 'share', 'cmake')):
            configured = self.configure(prefix=f'{self.prefix};{place}')
            self.assertEqual(configured.exit_code, 0, str(configured))

    def test_what_does_not_fit_is_refused_with_the_remedy(self):
        self.assertRegex(self.refused('-DLIBTORCH_ROOT=/nowhere'),
                         r'no LibTorch is found.*-DLIBTORCH_ROOT=')
        for version in ('2.13.0', '2.99.0'):  # of the range without a library here, and of the future
            self.assertRegex(
                self.refused(f'-DLIBTORCH_ROOT={self.made_up_torch(version)}'),
                rf"have torch '{version}', need one of those that this Elixir was built for \(2\.11\): install one")
        with open(os.path.join(self.prefix, 'lib', 'cmake', 'elixir', 'elixirConfigVersion.cmake'),
                  encoding='utf-8') as file:
            version = re.search(r'PACKAGE_VERSION "(\d+\.\d+\.\d+)"', file.read()).group(1)
        self.assertEqual(self.succeed(harness.program('elixird'), '--version').output.split()[-1], version)

    def made_up_torch(self, version):
        """A torch folder that says that it is this version: the true one's files in another's name."""
        folder = os.path.join(self.home, f'torch-{version}')
        if not os.path.isdir(folder):
            os.mkdir(folder)
            for name in ('include', 'lib'):
                os.symlink(os.path.join(LIBTORCH, name), os.path.join(folder, name))
            with open(os.path.join(folder, 'version.py'), 'w', encoding='utf-8') as file:
                file.write(f"__version__ = '{version}'\n")
        return folder

    def test_of_several_libraries_the_one_for_the_projects_torch_is_linked(self):
        both = os.path.join(self.home, 'both')
        shutil.copytree(self.prefix, both, symlinks=True)
        for place in ('lib', os.path.join('lib', 'cmake', 'elixir')):
            shutil.copytree(os.path.join(both, place, OWN_TORCH), os.path.join(both, place, 'torch215'), symlinks=True)
        # Where the targets of a build for 2.15 say that their library is.
        for path in glob.glob(os.path.join(both, 'lib', 'cmake', 'elixir', 'torch215', '*.cmake')):
            with open(path, encoding='utf-8') as file:
                text = file.read()
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text.replace(f'/lib/{OWN_TORCH}/', '/lib/torch215/'))
        for version, folder in (('2.11.0', OWN_TORCH), ('2.15.1', 'torch215')):
            configured = self.configure(f'-DLIBTORCH_ROOT={self.made_up_torch(version)}', prefix=both)
            self.assertEqual(configured.exit_code, 0, str(configured))
            linked = re.search(r'linked: (\S+)', configured.output).group(1)
            self.assertEqual(os.path.dirname(linked), os.path.join(both, 'lib', folder))
        self.assertIn('(2.11, 2.15)', self.refused(f'-DLIBTORCH_ROOT={self.made_up_torch("2.12.0")}', prefix=both))

    def test_nothing_but_the_public_names_is_exported(self):
        names = exported(os.path.join(self.prefix, 'lib', OWN_TORCH, 'libelixir.so'))
        self.assertEqual([name for name in names if not PUBLIC.fullmatch(name)], [])
        for name in ('elixir::AdamW::AdamW(', 'elixir::Gathered::~Gathered()', 'typeinfo for elixir::Error',
                     'elixir::plan(', 'elixir::checkpoint(', 'elixir::prepare_torch('):
            self.assertTrue([found for found in names if found.startswith(name)], name)
        cuda = os.path.join(self.prefix, 'lib', OWN_TORCH, 'libelixir_cuda.so')
        if os.path.exists(cuda):
            self.assertEqual([name for name in sorted(exported(cuda)) if 'elixir' in name],
                             ['elixir_cuda_library', 'elixir_cuda_library_version', 'elixir_gpu_probe'])

    def test_headers_are_few_and_name_each_other_as_installed(self):
        include = os.path.join(self.prefix, 'include')
        self.assertEqual(os.listdir(include), ['elixir'])
        headers = glob.glob(f'{include}/**/*.h', recursive=True)
        self.assertLessEqual(len(headers), MOST_HEADERS)
        for header in headers:
            with open(header, encoding='utf-8') as file:
                text = file.read()
            for name in re.findall(r'#include "(.*)"', text):
                self.assertIn(os.path.join(include, name), headers, header)
            self.assertNotIn('#include <fmt', text, header)

    def test_it_names_no_folder_of_the_machine_that_built_it(self):
        found = 0
        for place in ('include', os.path.join('lib', 'cmake')):
            for path in glob.glob(os.path.join(self.prefix, place, '**', '*'), recursive=True):
                if os.path.isfile(path):
                    found += 1
                    with open(path, encoding='utf-8') as file:
                        text = file.read()
                    for folder in (REPOSITORY, BUILD, self.installed, os.path.dirname(LIBTORCH)):
                        self.assertNotIn(folder, text, path)
        self.assertGreater(found, 10)
        library = os.path.join(self.prefix, 'lib', OWN_TORCH, 'libelixir.so')
        self.assertEqual(run_path(library), '$ORIGIN')
        soname = re.search(r'SONAME.*\[(.*)\]', run('readelf', '-d', library).stdout).group(1)
        self.assertRegex(soname, r'^libelixir\.so\.\d+\.\d+$')


if __name__ == '__main__':
    harness.main()
