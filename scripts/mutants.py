#!/usr/bin/env python3
"""Would the tests notice? Applies the mutants of tests/mutants/*.toml, one at a time, to a copy of the
tree, builds the tests that should catch the mutant, and runs them, then those of its room. Exit code 1
when fewer than nine of ten are caught, when one survives without a stated reason, or when one that is
accepted is caught; 75 when --minutes left some out.

    scripts/mutants.py                  all of them
    scripts/mutants.py --part 2/5       the second of five parts
    scripts/mutants.py --minutes 50     begins no mutant after 50 minutes
    scripts/mutants.py --only 7b 21     these
    scripts/mutants.py --preset tsan    those of one preset
    scripts/mutants.py --since REV      those that are new since REV, or whose mutated file changed
    scripts/mutants.py --results        the kept results, and whether they are of today's sources
    scripts/mutants.py --list           the list, after a check that every text is there exactly once

Each result is kept in tests/mutants/results.tsv as soon as it is there. A second run leaves out the
mutants whose result is of the same record, mutated file and tests, so that an interrupted run resumes;
--again runs them, too. The copies and their builds are in build/mutants; a second run builds little.
Before its first mutant each test runs without one: it must pass, and its time sets how long it may take.
Presets: `plain` is the release build without LibTorch and benchmarks and with little optimisation, `torch`
the same with LibTorch, `tsan` and `asan` as in CMakePresets.json.
"""

import argparse
import collections
import datetime
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

import failed_tests
import quick_tests

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
TABLES = os.path.join('tests', 'mutants', '*.toml')
RESULTS = os.path.join('tests', 'mutants', 'results.tsv')
WORK = os.path.join(ROOT, 'build', 'mutants')

# A mutant compiles one batch of sources again.
QUICK = ['--preset', 'release', '-DELIXIR_BUILD_BENCH=OFF', '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DNDEBUG']
PLAIN = [*QUICK, '-DELIXIR_WITH_TORCH=OFF', '-DCMAKE_UNITY_BUILD_BATCH_SIZE=2']
# LibTorch's wheel is in the tree, not in its copy.
TORCH = [*QUICK, '-DCMAKE_UNITY_BUILD_BATCH_SIZE=3', '-DLIBTORCH_ROOT=' +
         ''.join(glob.glob(os.path.join(ROOT, '.venv', 'lib', 'python3*', 'site-packages', 'torch')))]
PRESETS = {'plain': PLAIN, 'torch': TORCH, 'tsan': ['--preset', 'tsan'], 'asan': ['--preset', 'asan']}

# The tests of a room, the quick ones first. Of a folder that is not named here: its parent's.
ROOM_TESTS = {
    'base': ['base_test'],
    'shm': ['shm_test'],
    'optim_cpu': ['optim_constants_test', 'optim_span_test', 'optim_gradients_test', 'optim_kill_test',
                  'optim_formats_test', 'optim_equal_bits_test', 'daemon_logic_test'],
    'daemon': ['daemon_logic_test', 'elixird_test', 'elixird_commit_test', 'client_session_test'],
    'planner': ['planner_belady_test', 'planner_search_test', 'planner_machine_test',
                'planner_models_test', 'planner_simulate_test', 'simulate_fetches_test'],
    'launcher': ['launcher_test', 'elixir_run_test'],
    'ctl': ['ctl_test', 'ctl_doctor_test', 'ctl_checkpoint_test', 'ctl_probe_test', 'ctl_estimate_test'],
    'checkpoint': ['checkpoint_read_test', 'checkpoint_write_test', 'checkpoint_crash_test'],
    'models': ['models_config_test', 'models_gpt2_test', 'models_convert_test'],
    'client': ['client_core_test'],
    'client/tensors': ['client_interception_test', 'client_torch_ways_test'],
    'client/train': ['client_training_test', 'client_torch_ways_test'],
    'client/collectives': ['client_collective_test'],
    'tests/fake_cuda': ['fake_cuda_test'],
    'tests/fake_nccl': ['fake_nccl_test'],
    'client/session': ['client_session_test', 'client_host_exchange_test'],
    'client/exchange': ['client_host_exchange_test', 'client_collective_exchange_test'],
}
# What the thread sanitizer is asked about; the rest of a room says nothing of orders.
ROOM_TESTS_TSAN = {'daemon': ['daemon_logic_test'], 'client/session': ['client_session_test']}

FIELDS = {'id', 'what', 'file', 'old', 'new', 'caught_by', 'preset', 'accepted', 'not_run', 'control'}
CAUGHT_SHARE = 0.9
TEST_LIMIT_S = 600  # without a mutant
MUTANT_LIMIT_S = 300  # at most
BUILD_LIMIT_S = 3600
UNFINISHED = 75  # an exit code, that of sysexits.h for what a later call may finish


class Rotten(Exception):
    """A record that does not fit the tree."""


def load(root=ROOT):
    return records(read(table).decode() for table in sorted(glob.glob(os.path.join(root, TABLES))))


def load_of(revision):
    """The list as it was at a revision."""
    def git(*command):
        return subprocess.run(['git', *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    paths = git('ls-tree', '--name-only', revision, os.path.join(os.path.dirname(TABLES), '')).splitlines()
    return records(git('show', f'{revision}:{path}') for path in fnmatch.filter(paths, TABLES))


def records(tables):
    mutants = [mutant for table in tables for mutant in tomllib.loads(table)['mutant']]
    seen = set()
    for mutant in mutants:
        name = mutant.get('id', '?')
        if set(mutant) - FIELDS or {'id', 'what', 'file', 'old', 'new'} - set(mutant):
            raise Rotten(f'mutant {name}: its fields are {sorted(mutant)}')
        if name in seen:
            raise Rotten(f'mutant {name} is there twice')
        seen.add(name)
        if mutant.setdefault('preset', 'plain') not in PRESETS:
            raise Rotten(f'mutant {name}: preset {mutant["preset"]}')
        if sum(key in mutant for key in ('caught_by', 'accepted', 'control')) != 1:
            raise Rotten(f'mutant {name}: one of caught_by, accepted and control says what is expected')
    return mutants


def mutated(mutant, root=ROOT):
    """The file's text with the mutant in it. Rotten when the old text is not there exactly once."""
    path = os.path.join(root, mutant['file'])
    if not os.path.isfile(path):
        raise Rotten(f'mutant {mutant["id"]}: there is no {mutant["file"]}')
    with open(path, encoding='utf-8') as file:
        text = file.read()
    count = text.count(mutant['old'])
    if count != 1:
        raise Rotten(f'mutant {mutant["id"]} ({mutant["what"]}): its text is {count} times in '
                     f'{mutant["file"]}, not once:\n{mutant["old"]}')
    if mutant['old'] == mutant['new']:
        raise Rotten(f'mutant {mutant["id"]} changes nothing')
    return text.replace(mutant['old'], mutant['new'])


def room_tests(mutant):
    tables = [ROOM_TESTS_TSAN] if mutant['preset'] == 'tsan' else [ROOM_TESTS]
    folder = os.path.dirname(mutant['file'])
    while folder:
        for table in tables:
            if folder in table:
                return table[folder]
        folder = os.path.dirname(folder)
    return []


# ---- results ----

def test_sources(root=ROOT):
    """Of each test program, and of each Python test ("e2e_ranks"), its own files."""
    found = {}
    for table in glob.glob(os.path.join(root, 'tests', '*', 'CMakeLists.txt')):
        text = re.sub(r'#[^\n]*', '', read(table).decode())
        for program, sources in re.findall(r'elixir_(?:gpu_)?test\((\w+)\s+SOURCES\s([^)]*?)\s+LINK', text):
            paths = [os.path.join(os.path.dirname(table), source) for source in re.findall(r'[\w/]+\.cpp', sources)]
            found.setdefault(program, []).extend(path for path in paths if os.path.isfile(path))
    for path in glob.glob(os.path.join(root, 'tests', '*', '*_test.py')):
        found[f'{os.path.basename(os.path.dirname(path))}_{os.path.basename(path)[:-len("_test.py")]}'] = [path]
    return found


class Keys:
    """What a verdict comes from: the record, the file that it changes, and the tests that should see it.
    The rest of the tree counts in --again, which asks every mutant once more."""

    def __init__(self, root=ROOT):
        self.root = root
        self.sources = test_sources(root)

    def of(self, mutant):
        programs = {test.split()[0] for test in mutant.get('caught_by', [])}
        paths = {os.path.join(self.root, mutant['file']),
                 *(path for program in programs for path in self.sources.get(program, []))}
        whole = hashlib.sha256(json.dumps(mutant, sort_keys=True).encode())
        for path in sorted(paths):
            whole.update(read(path) if os.path.isfile(path) else b'')
        return whole.hexdigest()[:12]


class Results:
    """The last verdict on each mutant. A row is written as soon as it is known."""

    HEAD = ('id', 'verdict', 'date', 'commit', 'key', 'detail')

    def __init__(self, path, key_of, commit):
        self.path = path
        self.key_of = key_of  # of a mutant
        self.commit = commit
        self.rows = {}  # id -> the columns behind it
        if os.path.isfile(path):
            for line in read(path).decode().splitlines()[1:]:
                name, *rest = line.split('\t')
                self.rows[name] = rest

    def has(self, mutant):
        row = self.rows.get(mutant['id'])
        return row is not None and row[3] == self.key_of(mutant) and row[0] != 'error'

    def outcome(self, mutant):
        return Outcome(mutant, self.rows[mutant['id']][0], self.rows[mutant['id']][4])

    def keep(self, outcome, known):
        """`known`: ids of the list; rows of others go."""
        today = datetime.date.today().isoformat()
        detail = ' '.join(outcome.detail.split())[:200]
        self.rows[outcome.mutant['id']] = [outcome.verdict, today, self.commit,
                                           self.key_of(outcome.mutant), detail]
        rows = ['\t'.join((name, *row)) for name, row in sorted(self.rows.items()) if name in known]
        with open(self.path + '.new', 'w', encoding='utf-8') as file:
            file.write('\n'.join(('\t'.join(self.HEAD), *rows)) + '\n')
        os.replace(self.path + '.new', self.path)


def part_of(mutants, part):
    """Part I of N, as "I/N". Mutants of one preset and one file stand together: little is built twice."""
    index, _, parts = part.partition('/')
    if not (index.isdigit() and parts.isdigit() and 1 <= int(index) <= int(parts)):
        raise ValueError(f"--part takes I/N with 1 <= I <= N, such as 2/5, not '{part}'")
    ordered = sorted(mutants, key=lambda mutant: (mutant['preset'], mutant['file'], mutant['id']))
    first, last = (len(ordered) * i // int(parts) for i in (int(index) - 1, int(index)))
    return ordered[first:last]


class Copy:
    """The tree beside the user's own, and its builds in it. Each worker has one."""

    def __init__(self, jobs, number=0):
        self.tree = os.path.join(WORK, f'tree-{number}')
        self.jobs = jobs
        self.configured = set()

    def refresh(self):
        """What git knows and what it would add; files that are the same keep their times. Their hash."""
        listed = subprocess.run(['git', 'ls-files', '-z', '-co', '--exclude-standard'], cwd=ROOT,
                                capture_output=True, check=True).stdout.decode().split('\0')
        wanted = {path for path in listed if path and os.path.isfile(os.path.join(ROOT, path))}
        for folder, folders, files in os.walk(self.tree):
            if folder == self.tree and 'build' in folders:
                folders.remove('build')
            for name in files:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.tree) not in wanted:
                    os.unlink(path)
        whole = hashlib.sha256()
        for path in sorted(wanted):
            data = read(os.path.join(ROOT, path))
            whole.update(f'{path} {len(data)} '.encode() + data)
            self.write(path, data, os.path.join(ROOT, path))
        return whole.hexdigest()

    def write(self, path, data, mode_of=None):
        target = os.path.join(self.tree, path)
        if os.path.isfile(target) and read(target) == data:
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, 'wb') as file:
            file.write(data)
        if mode_of:
            shutil.copymode(mode_of, target)

    def build_folder(self, preset):
        return os.path.join(self.tree, 'build', preset)

    def build(self, preset, programs):
        """'' or what went wrong."""
        folder = self.build_folder(preset)
        # All copies share the compiler cache.
        environment = {**os.environ, 'CCACHE_BASEDIR': self.tree, 'CCACHE_NOHASHDIR': '1'}
        if preset not in self.configured:
            done = run(['cmake', *PRESETS[preset], '-B', folder], self.tree, BUILD_LIMIT_S, environment)
            if done.returncode != 0:
                return done.stdout
            self.configured.add(preset)
        done = run(['nice', 'ninja', '-C', folder, f'-j{self.jobs}', *programs], self.tree, BUILD_LIMIT_S,
                   environment)
        return '' if done.returncode == 0 else done.stdout[-3000:]

    def failures(self, preset, test, limit_s):
        """`test`: a program and, perhaps, which of its tests (--gtest_filter). The names of what fails."""
        program, _, which = test.partition(' ')
        command = [os.path.join(self.build_folder(preset), 'tests', program)]
        if which:
            command.append(f'--gtest_filter={which}')
        environment = dict(os.environ)
        if preset == 'tsan':
            command = without_randomisation() + command
            environment['TSAN_OPTIONS'] = 'halt_on_error=1 ' + environment.get('TSAN_OPTIONS', '')
        done = run(command, self.build_folder(preset), limit_s, environment)
        end_programs_of(self.build_folder(preset))
        if which and done.returncode == 0 and ' 0 tests from ' in done.stdout:
            return [f'{test}: there is no such test']
        return [] if done.returncode == 0 else failed_names(program, done)


def read(path):
    with open(path, 'rb') as file:
        return file.read()


def run(command, folder, limit_s, environment=None):
    """With its output, of both kinds, as text; exit code 124 when it took too long."""
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=limit_s,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return subprocess.CompletedProcess(command, done.returncode,
                                           done.stdout.decode(errors='replace'))
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 124, (late.stdout or b'').decode(errors='replace'))


def end_programs_of(folder):
    """What a test that failed has left: elixird, or trainers that nobody waits for any more."""
    for process in glob.glob('/proc/[0-9]*'):
        try:
            if os.readlink(os.path.join(process, 'exe')).startswith(os.path.join(folder, '')):
                os.kill(int(os.path.basename(process)), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it ended, or is another user's, or has no program


def without_randomisation():
    """Address-space randomisation with many bits and the thread sanitizer do not get along."""
    works = subprocess.run(['setarch', '-R', 'true'], capture_output=True, check=False).returncode == 0
    return ['setarch', '-R'] if works else []


def failed_names(program, done):
    blocks = list(failed_tests.failed_blocks(done.stdout))
    names = [failed_tests.name_of(block) for block in blocks if failed_tests.is_failed(block)]
    if not names:  # it died, or hung, or the sanitizer ended it
        running = failed_tests.name_of(blocks[-1]) if blocks else program
        names = [f'{running} ({"too long" if done.returncode == 124 else "died"})']
    return [f'{program} {name}' for name in dict.fromkeys(names)]


class Outcome:
    def __init__(self, mutant, verdict, detail=''):
        self.mutant = mutant
        self.verdict = verdict  # caught, survived, accepted, control, not run, error
        self.detail = detail

    def good(self):
        return self.verdict in ('caught', 'accepted', 'control', 'not run')

    def row(self):
        return f'{self.mutant["id"]:>4}  {self.verdict:<9} {self.mutant["what"]}: {self.detail}'


def judge(mutant, caught):
    """What came of it, from the tests that failed."""
    if 'control' in mutant:
        return Outcome(mutant, 'error', f'changes nothing, and was caught: {caught[0]}') if caught else \
            Outcome(mutant, 'control', 'changes nothing, and survives')
    if 'accepted' in mutant:
        return Outcome(mutant, 'error', f'is caught by now, by {caught[0]}: say so in the list') \
            if caught else Outcome(mutant, 'accepted', mutant['accepted'])
    return Outcome(mutant, 'caught', ', '.join(caught[:2])) if caught else \
        Outcome(mutant, 'survived', 'no test failed')


class Baseline:
    """What each test does without a mutant. One that fails so says nothing of mutants."""

    def __init__(self, path, tree):
        """`path`: where the seconds are kept. `tree`: the hash of the files that they are of."""
        self.path = path
        self.tree = tree
        self.lock = threading.Lock()
        self.seconds = {}  # "preset test" -> what it took
        if os.path.isfile(path):
            kept = json.loads(read(path))
            if kept['tree'] == tree:
                self.seconds = kept['seconds']

    def failures(self, preset, tests, copy):
        """What is wrong with the tests of a copy that holds no mutant, as a text."""
        missing = [test for test in tests if f'{preset} {test}' not in self.seconds]
        if not missing:
            return ''
        wrong = copy.build(preset, sorted({test.split()[0] for test in missing}))
        if wrong:
            return f'without a mutant, it does not build:\n{wrong}'
        for test in missing:
            began = time.monotonic()
            failed = copy.failures(preset, test, TEST_LIMIT_S)
            if failed:
                return f'without a mutant, {failed[0]} fails'
            self.keep(f'{preset} {test}', time.monotonic() - began)
        return ''

    def keep(self, name, seconds):
        with self.lock:
            self.seconds[name] = round(seconds, 2)
            with open(self.path, 'w', encoding='utf-8') as file:
                json.dump({'tree': self.tree, 'seconds': self.seconds}, file)

    def limit_s(self, preset, test):
        """A mutant that has a test hang is caught. Ten times, since another worker may slow it down."""
        return min(MUTANT_LIMIT_S, 20 + 10 * self.seconds[f'{preset} {test}'])


def try_mutant(mutant, copy, baseline):
    if 'not_run' in mutant:
        said = ', '.join(mutant.get('caught_by', [])) or mutant.get('accepted', '')
        return Outcome(mutant, 'not run', f'{mutant["not_run"]}; {said}')
    preset = mutant['preset']
    original = read(os.path.join(copy.tree, mutant['file']))
    said = mutant.get('caught_by', [])
    rest = [test for test in room_tests(mutant) if test not in said]
    for tests in (said, rest):  # the room's are built only when those that should do not see it
        if not tests:
            continue
        wrong = baseline.failures(preset, tests, copy)
        if wrong:
            return Outcome(mutant, 'error', wrong)
        copy.write(mutant['file'], mutated(mutant, copy.tree).encode())
        try:
            wrong = copy.build(preset, sorted({test.split()[0] for test in tests}))
            if wrong:
                return Outcome(mutant, 'error', f'it does not build:\n{wrong}')
            for test in tests:
                failed = copy.failures(preset, test, baseline.limit_s(preset, test))
                if failed:
                    return judge(mutant, failed)
        finally:
            copy.write(mutant['file'], original)
    return judge(mutant, [])


def share_caught(outcomes):
    """Of those that ran and should be caught; an accepted one counts among them."""
    ran = [outcome for outcome in outcomes if outcome.verdict not in ('control', 'not run')]
    return sum(outcome.verdict == 'caught' for outcome in ran) / len(ran) if ran else 1.0


def summary(outcomes, whole=True):
    """Lines, and whether all is well. `whole`: it is the list, not a part of it, that must have its share."""
    counts = {}
    for outcome in outcomes:
        counts[outcome.verdict] = counts.get(outcome.verdict, 0) + 1
    share = share_caught(outcomes)
    well = (share >= CAUGHT_SHARE or not whole) and all(outcome.good() for outcome in outcomes)
    told = ', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))
    return [*(outcome.row() for outcome in outcomes), '',
            f'{len(outcomes)} mutants: {told}; {share:.0%} of those that ran are caught'], well


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--list', action='store_true', help='prints the list and runs nothing')
    parser.add_argument('--results', action='store_true', help='prints the kept results and runs nothing')
    parser.add_argument('--only', nargs='+', metavar='ID', help='these mutants')
    parser.add_argument('--preset', choices=sorted(PRESETS), help='the mutants of this preset')
    parser.add_argument('--since', metavar='REV', help='those that are new since REV, or whose mutated file changed')
    parser.add_argument('--part', metavar='I/N', help='one of N parts of the list')
    parser.add_argument('--minutes', type=float, help='begins no mutant after so many minutes')
    parser.add_argument('--again', action='store_true', help='also those whose result is of these sources')
    parser.add_argument('-j', '--jobs', type=int, default=2, help='compilers at a time of each worker (2)')
    parser.add_argument('--workers', type=int, default=os.cpu_count(), help='mutants at a time (one per core)')
    return parser.parse_args()


def owed(mutants, before, changed):
    """What a change has to ask: mutants that are not in the list of before, and those of files that changed."""
    return [mutant for mutant in mutants if mutant['file'] in changed or mutant not in before]


def chosen_of(mutants, options):
    unknown = set(options.only or []) - {mutant['id'] for mutant in mutants}
    if unknown:
        sys.exit(f'mutants: there is no {", ".join(sorted(unknown))}')
    chosen = [mutant for mutant in mutants
              if (not options.only or mutant['id'] in options.only)
              and (not options.preset or mutant['preset'] == options.preset)]
    try:
        if options.since:
            chosen = owed(chosen, load_of(options.since), quick_tests.changed_files(options.since))
        return part_of(chosen, options.part) if options.part else chosen
    except subprocess.CalledProcessError:
        sys.exit(f'mutants: git knows no revision {options.since}')
    except ValueError as wrong:
        sys.exit(f'mutants: {wrong}')


def print_list(chosen):
    for mutant in chosen:
        expected = mutant.get('not_run') or mutant.get('accepted') or ', '.join(mutant.get('caught_by', ['control']))
        print(f'{mutant["id"]:>4}  {mutant["preset"]:<6} {mutant["file"]}: {mutant["what"]} [{expected}]')


def print_results(chosen, results):
    kept = [mutant for mutant in chosen if mutant['id'] in results.rows]
    lines, well = summary([results.outcome(mutant) for mutant in kept], whole=len(kept) == len(chosen))
    old = sum(not results.has(mutant) for mutant in kept)
    print('\n'.join(lines))
    print(f'{len(chosen) - len(kept)} without a result, {old} results of other sources')
    return 0 if well and len(kept) == len(chosen) else 1


def run_mutants(chosen, options, results, known):
    began = time.monotonic()

    def say(text):
        print(f'[{time.monotonic() - began:5.0f} s] {text}', flush=True)

    left = [mutant for mutant in chosen if options.again or not results.has(mutant)]
    if len(left) < len(chosen):
        say(f'{len(chosen) - len(left)} of {len(chosen)} have a result of these sources')
    workers = max(1, min(options.workers, len(left)))
    copies = [Copy(options.jobs, number) for number in range(workers)]
    tree = [copy.refresh() for copy in copies][0]
    baseline = Baseline(os.path.join(WORK, 'baseline.json'), tree)
    # Mutants that are neighbours in the list share a build. Two workers have a share together: one starts at its
    # first mutant, the other at its last one.
    pairs = (workers + 1) // 2
    shares = [collections.deque(part_of(left, f'{pair + 1}/{pairs}')) for pair in range(pairs)]
    lock, done, broken = threading.Lock(), [], []

    def work(number):
        share = shares[number // 2]
        while not broken:
            with lock:
                if not share or (options.minutes and time.monotonic() - began > 60 * options.minutes):
                    return
                mutant = share.popleft() if number % 2 == 0 else share.pop()
            try:
                outcome = try_mutant(mutant, copies[number], baseline)
            except BaseException as error:  # pylint: disable=broad-except  (the main thread raises it)
                broken.append(error)
                return
            with lock:
                results.keep(outcome, known)
                done.append(mutant)
                say(f'{len(done)} of {len(left)}: {outcome.row().strip()}')

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    if len(done) < len(left):
        say(f'{len(left) - len(done)} mutants are left for the next run')
    outcomes = [results.outcome(mutant) for mutant in chosen if results.has(mutant) or mutant in done]
    lines, well = summary(outcomes, whole=len(outcomes) == len(known))
    print('\n' + '\n'.join(lines))
    return 1 if not well else UNFINISHED if len(done) < len(left) else 0


def main():
    # A shell that starts this in its background has it ignore both, and the tests would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    options = arguments()
    try:
        mutants = load()
        for mutant in mutants:
            mutated(mutant)
    except Rotten as rotten:
        sys.exit(f'mutants: {rotten}')
    chosen = chosen_of(mutants, options)
    if options.list:
        print_list(chosen)
        return 0
    head = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout.strip()
    results = Results(os.path.join(ROOT, RESULTS), Keys().of, head)
    if options.results:
        return print_results(chosen, results)
    return run_mutants(chosen, options, results, {mutant['id'] for mutant in mutants})


if __name__ == '__main__':
    sys.exit(main())
