"""The documentation is true: listings are the files, commands run, links lead somewhere, every
program answers --help, every exit code is documented.

  docs_test.py --fix    copies the files into their listings
"""

import glob
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import BIN, REPOSITORY  # noqa: E402

BUILD = os.path.realpath(os.path.join(BIN, '..'))
IS_RELEASE = BUILD == os.path.join(REPOSITORY, 'build', 'release')
FOREIGN_PYTHON = os.path.join(REPOSITORY, 'build', 'foreign_venv', 'bin', 'python')
TUTORIALS = os.path.join('docs', 'tutorials', '')
NOT_OURS = {'build', '.git', '.venv', '.cache'}

LISTING = re.compile(r'(<!-- listing: (\S+) -->\n```\w*\n)(.*?)(^```$)', re.M | re.S)
SHELL = re.compile(r'^```sh\n(.*?)^```$', re.M | re.S)
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')


def files(*endings):
    for folder, folders, names in os.walk(REPOSITORY):
        folders[:] = [name for name in folders if name not in NOT_OURS]
        for name in names:
            if name.endswith(endings):
                yield os.path.join(folder, name)


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def without_fences(text):
    return re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S)


def commands():
    """(page, command) of every command in a ```sh block; a line's comment is no part of it. Tutorials, whose
    commands need one another, have tutorials_test.py."""
    for page in files('.md'):
        if os.path.relpath(page, REPOSITORY).startswith(TUTORIALS):
            continue
        for block in SHELL.findall(read(page)):
            for line in block.replace('\\\n', ' ').splitlines():
                command = re.sub(r'(^|\s+)#.*$', '', line).strip()
                if command:
                    yield os.path.relpath(page, REPOSITORY), command


# What takes long, or would run this test again, in a form that does not. Every other command runs
# as it is written.
def syntax_alone(script):
    return f'test -x {script} && bash -n {script}'


# The default build leaves out what these need; the nightly entry of this test runs them.
NEEDS_EVERYTHING = re.compile(r'build/release/(?:examples|bench|your_project|installed)|bench/|--install build')


ALL_PEERS = ('for model in nano small; do for dtype in bf16 fp32; do '
             'bench/peers.py --model $model --dtype $dtype || exit; done; done')

SHORT_FORMS = {
    'scripts/test.sh': syntax_alone('scripts/test.sh'),
    'scripts/build.sh': 'scripts/build.sh release -- elixirctl' if IS_RELEASE else
                        syntax_alone('scripts/build.sh'),
    # The default run builds for another torch by itself; the second names a folder that is the reader's.
    'scripts/build.sh --torch 2.15.0': 'scripts/setup.sh --torch 2.15.0 --check || test $? -eq 1',
    'scripts/build.sh --torch ~/venv': syntax_alone('scripts/build.sh'),
    'cmake --install build/release-torch215 --prefix build/release/installed': 'true',
    'scripts/demo.sh': syntax_alone('scripts/demo.sh'),  # tests/e2e/demo_test.py runs it
    # Tested by tests/scripts/gpu_check_pack_test.sh.
    'scripts/gpu_check.sh pack': syntax_alone('scripts/gpu_check.sh'),
    'scripts/gpu_check.sh run 1': syntax_alone('scripts/gpu_check.sh'),
    # It needs a network where something is missing.
    'scripts/foreign_setup.sh': 'scripts/foreign_setup.sh --check || test $? -eq 1',
    'scripts/peers_setup.sh': f"{syntax_alone('scripts/peers_setup.sh')} && scripts/peers_setup.sh --help",
    # Without what has to be installed, and a few steps.
    ALL_PEERS: ALL_PEERS.replace(' small', '').replace(
        'bench/peers.py', 'bench/peers.py --systems elixir --batch 1 --seq 32 --steps 3 --rounds 1 '
        '--build build/release/'),
}


# Four steps show as well as twenty that the flags are right. Commands that write files make all of their steps.
KEEPS = re.compile(r'--checkpoints|--export|picture|--trace|--jsonl')


def short_form(command):
    if command in SHORT_FORMS:
        return SHORT_FORMS[command]
    return command if KEEPS.search(command) else re.sub(r'--steps (?:10|20)\b', '--steps 4', command)


class Commands(harness.ElixirTest):
    """Each command once, wherever it stands first. The commands of one page run in their order."""

    def run_pages(self, number):
        """Those of the pages with this number, 0 or 1."""
        listed = list(commands())
        self.assertIn(('README.md', 'scripts/demo.sh'), listed)
        self.assertIn(('bench/RESULTS.md', ALL_PEERS), listed)
        first = {}
        for page, command in sorted(listed):
            if bool(NEEDS_EVERYTHING.search(command)) == harness.NIGHTLY:
                first.setdefault(command, page)
        pages = sorted(set(first.values()))
        chosen = [(page, command) for page, command in listed
                  if first.get(command) == page and pages.index(page) % 2 == number]
        self.assertGreater(len(chosen), 0 if harness.NIGHTLY else 2)
        for page, command in dict.fromkeys(chosen):
            with self.subTest(page=page, command=command):
                if 'build/foreign_venv/' in command and not os.path.exists(FOREIGN_PYTHON):
                    self.skipTest(f'{FOREIGN_PYTHON} is not there; scripts/foreign_setup.sh makes it')
                command = short_form(command)
                if '/fake_cuda/run.py' in command:  # where no namespace may be made
                    command += ' || test $? -eq 77'
                words = command.replace('build/release/', f'{os.path.relpath(BUILD, REPOSITORY)}/')
                finished = self.run_program('bash', '-c', words, cwd=REPOSITORY, limit_s=600)
                self.assertEqual(finished.exit_code, 0, str(finished))
        self.stop_idle_elixird()

    def test_of_half_of_the_pages(self):
        self.run_pages(0)

    def test_of_the_other_pages(self):
        self.run_pages(1)


@unittest.skipUnless(harness.NIGHTLY, 'the default build has no examples')
class Examples(harness.ElixirTest):
    def test_the_example_of_the_readme_learns(self):
        finished = self.succeed(os.path.join(harness.EXAMPLES, 'your_model'), limit_s=120)
        losses = [float(loss) for loss in re.findall(r'^(?:step \d+ )?loss (\S+?),?(?: |$)', finished.output, re.M)]
        self.assertEqual(len(losses), 5, str(finished))
        self.assertLess(losses[-1], losses[0] / 2)
        self.stop_idle_elixird()


class Docs(harness.ElixirTest):
    def test_listings_are_the_files(self):
        found = 0
        for page in files('.md'):
            for _, name, listing, _ in LISTING.findall(read(page)):
                found += 1
                self.assertEqual(listing, read(os.path.join(REPOSITORY, name)),
                                 f'{page}: the listing of {name} is old; tests/docs/docs_test.py --fix')
        self.assertGreater(found, 0)

    def test_a_reader_of_the_readme_has_built_what_it_runs(self):
        demo = re.search(r'^scripts/build.sh release -- (.*)$', read(os.path.join(REPOSITORY, 'scripts/demo.sh')), re.M)
        self.assertEqual(demo.group(1).split(), ['elixir_programs'])  # all of build/release/bin
        found, built = 0, False  # the demo builds neither examples nor benchmarks
        for page, command in commands():
            if page != 'README.md':
                continue
            built = built or command == 'scripts/build.sh'
            if re.search(r'build/release/(?:bench|examples)/', command):
                found += 1
                self.assertTrue(built, f'{command}: nothing before it builds this')
        self.assertGreater(found, 1)

    def test_the_flag_reference_is_what_the_programs_print(self):
        reference = os.path.join(REPOSITORY, 'scripts', 'flag_reference.py')
        self.assertEqual(self.succeed(reference, '--bin', BIN).output,
                         read(os.path.join(REPOSITORY, 'docs', 'flags.md')),
                         'docs/flags.md is old: run scripts/flag_reference.py --write')

    def test_the_api_reference_has_the_comments_of_the_headers(self):
        made = os.path.join(self.folder, 'api')
        finished = self.succeed(os.path.join(REPOSITORY, 'scripts', 'api_reference.sh'), made)
        self.assertEqual(finished.errors, '')
        for page, text in (('classelixir_1_1AdamW', "Takes the module's parameters"),
                           ('classelixir_1_1Optimizer', 'Ends the step'),
                           ('structelixir_1_1Options', 'in Chrome'),
                           ('python_reference', 'whose states, and all parameters but a few')):
            self.assertIn(text, read(os.path.join(made, 'html', page + '.html')).replace('&#39;', "'"))

    def test_relative_links_lead_somewhere(self):
        found = 0
        for page in files('.md'):
            for target in LINK.findall(without_fences(read(page))):
                if re.match(r'[a-z]+://|#|mailto:', target):
                    continue
                found += 1
                path = os.path.join(os.path.dirname(page), target.split('#')[0])
                self.assertTrue(os.path.exists(path), f'{page}: {target}')
        self.assertGreater(found, 5)

    def test_every_program_answers_help_and_version(self):
        table = re.search(r'^## Programs\n(.*?)^## ', read(os.path.join(REPOSITORY, 'README.md')),
                          re.M | re.S).group(1)
        names = set(re.findall(r'^\| `([a-z0-9_-]+)', table, re.M))
        self.assertLessEqual({'elixird', 'elixir-run', 'elixirctl', 'elixir-train'}, names)
        programs = [os.path.join(BIN, name) for name in sorted(names)]
        bench = os.path.join(BUILD, 'bench')
        if os.path.isdir(bench):
            programs += [entry.path for entry in os.scandir(bench)
                         if entry.is_file() and os.access(entry.path, os.X_OK)]
        for path in programs:
            with self.subTest(program=path):
                version = self.succeed(path, '--version')
                self.assertRegex(version.output, r'\d+\.\d+\.\d+')
                text = self.succeed(path, '--help').output
                self.assertIn('--help', text)
                self.assertIn('--version', text)

    def test_flags_that_the_documentation_names_exist(self):
        known = set()
        for command in ([harness.program(name)] for name in ('elixird', 'elixir-run', 'elixir-train',
                                                                 'elixir-generate')):
            known |= set(re.findall(r'--[a-z0-9-]+', self.succeed(command, '--help').output))
        checkpoint = [['checkpoint', name] for name in ('list', 'verify', 'estimate', 'export', 'import')]
        for subcommand in ('status', 'doctor', 'plan', 'profile', 'probe', 'estimate', 'simulate-cache',
                           *checkpoint):
            text = self.succeed(harness.program('elixirctl'), subcommand, '--help').output
            known |= set(re.findall(r'--[a-z0-9-]+', text))
        for script in ('gpu_check.sh', 'test.sh', 'nightly.py', 'repeat.sh', 'flag_reference.py', 'fit_table.py',
                       'language.py'):
            known |= set(re.findall(r'--[a-z0-9-]+', self.succeed(
                os.path.join(REPOSITORY, 'scripts', script), '--help').output))
        known |= set(re.findall(r'--[a-z0-9-]+', self.succeed(
            'python3', '-B', os.path.join(REPOSITORY, 'bench', 'peers.py'), '--help').output))
        for module in ('generate', 'tokenize'):  # python -m elixir.MODULE; running them needs torch
            source = read(os.path.join(REPOSITORY, 'python', 'elixir', f'{module}.py'))
            known |= set(re.findall(r"add_argument\('(--[a-z0-9-]+)'", source))
        # Of torchrun, cmake, sbatch, srun, scripts, and programs of our own that tell them elsewhere.
        known |= {'--signal', '--exact', '--cpus-per-task', '--mem', '--job-name', '--requeue', '--jobid', '--overlap', '--full',
                  '--no-python', '--nproc-per-node', '--standalone', '--install', '--fix', '--user', '--now'}
        for page in files('.md'):
            if os.path.relpath(page, REPOSITORY).split(os.sep)[0] not in ('README.md', 'docs'):
                continue
            for flag in re.findall(r'(?<![\w-])--[a-z][a-z0-9-]+', without_fences(read(page))):
                self.assertIn(flag, known, page)

    def test_torchrun_chooses_a_free_port(self):
        """Without the flag it listens on port 29500, where a second launch on the node fails."""
        found = 0
        for page in files('.md'):
            for command in re.findall(r'^.*torchrun .*--nproc-per-node.*$', read(page), re.M):
                found += 1
                self.assertIn(' --standalone ', command, page)
        self.assertGreater(found, 1)

    def test_every_exit_code_is_documented(self):
        codes = re.findall(r'^\s+k([A-Za-z]+) = (\d+),',
                           read(os.path.join(REPOSITORY, 'base', 'error.h')), re.M)
        self.assertGreater(len(codes), 8)
        page = read(os.path.join(REPOSITORY, 'docs', 'errors.md'))
        for name, number in codes:
            words = re.sub(r'(?<!^)([A-Z])', r'_\1', name).lower()
            self.assertRegex(page, rf'(?m)^\| {number} \| {words} \|')
        # And no more than there are.
        documented = re.findall(r'^\| (\d+) \|', page, re.M)
        self.assertEqual(sorted(documented, key=int), sorted((n for _, n in codes), key=int))

    def test_every_environment_variable_is_documented(self):
        """What stands in quotation marks in the product's sources and looks like a variable."""
        others = {'F8_E4M3', 'F8_E5M2', 'F8_E8M0', 'F_ADD_SEALS', 'SO_PEERCRED'}
        product = [path for path in files('.cpp', '.h') if os.path.relpath(path, REPOSITORY).split(
            os.sep)[0] not in ('tests', 'bench', 'examples')]
        named = set()
        for path in product:
            named |= set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK|ELIXIRD|HOME)["=]',
                                    read(path)))
        self.assertGreater(len(named), 40)
        page = read(os.path.join(REPOSITORY, 'docs', 'environment.md'))
        for name in sorted(named - others):
            self.assertIn(f'`{name}`', page)
        # And Elixir's own are no more than there are.
        for name in re.findall(r'`(ELIXIR\w+)`', page.split('## For building')[0]):
            self.assertIn(name, named)

    def test_each_way_of_torch_has_its_test(self):
        page = read(os.path.join(REPOSITORY, 'docs', 'torch_ways.md'))
        rows = re.findall(r'^\| .* \| `(\w+)` \|$', page, re.M)
        tests = []
        for path in glob.glob(os.path.join(REPOSITORY, 'tests', 'client', 'torch_*_test.cpp')):
            tests += re.findall(r'^TEST_[PF]\(\w+,\s+(\w+)\)', read(path), re.M)
        self.assertGreaterEqual(len(rows), 60)
        # One test may show several ways.
        self.assertEqual(sorted(set(rows)), sorted(set(tests) - {'PlainSteps'}))

    def test_no_file_names_the_host_of_a_package_registry(self):
        # In two pieces each, so that this file may stand in the repository.
        hosts = ['.'.join(words) for words in (('pypi', 'org'), ('pythonhosted', 'org'),
                                               ('deb', 'debian', 'org'), ('anaconda', 'org'),
                                               ('npmjs', 'org'), ('crates', 'io'),
                                               ('download', 'pytorch', 'org'))]
        for path in files('.md', '.py', '.sh', '.txt', '.cmake', '.h', '.cpp', '.json', '.toml', '.in'):
            text = read(path)
            for host in hosts:
                self.assertNotIn(host, text, path)


def fix():
    for page in files('.md'):
        old = read(page)
        new = LISTING.sub(lambda match: match[1] + read(os.path.join(REPOSITORY, match[2])) + match[4],
                          old)
        if new != old:
            with open(page, 'w', encoding='utf-8') as file:
                file.write(new)
            print('fixed', page)


if __name__ == '__main__':
    if sys.argv[1:] == ['--fix']:
        fix()
    else:
        harness.main()
