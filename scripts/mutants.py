#!/usr/bin/env python3
"""Would the tests notice? Applies the mutants of tests/mutants/mutants.toml, one at a time, to a copy of
the tree, builds what the mutant needs, and runs the tests that are said to catch it, then those of its
room. Exit code 1 when fewer than nine of ten are caught, when one survives and no reason is given for
it, or when one that is accepted is caught.

    scripts/mutants.py                all that can run without LibTorch
    scripts/mutants.py --only 7b 21   these
    scripts/mutants.py --preset tsan  those of one preset
    scripts/mutants.py --list         the list, after a check that every text is there exactly once

The copy and its builds are in build/mutants; a second run builds little. Presets: `plain` is the release
build without LibTorch and benchmarks, `tsan` and `asan` as in CMakePresets.json.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib

import failed_tests

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
TABLE = os.path.join('tests', 'mutants', 'mutants.toml')
WORK = os.path.join(ROOT, 'build', 'mutants')

PLAIN = ['--preset', 'release', '-DELIXIR_WITH_TORCH=OFF', '-DELIXIR_BUILD_BENCH=OFF']
PRESETS = {'plain': PLAIN, 'tsan': ['--preset', 'tsan'], 'asan': ['--preset', 'asan']}

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
    'ctl': ['ctl_test', 'ctl_doctor_test'],
    'client': ['client_core_test'],
    'client/session': ['client_session_test', 'client_host_exchange_test'],
    'client/exchange': ['client_host_exchange_test', 'client_collective_exchange_test'],
}
# What the thread sanitizer is asked about; the rest of a room says nothing of orders.
ROOM_TESTS_TSAN = {'daemon': ['daemon_logic_test'], 'client/session': ['client_session_test']}

FIELDS = {'id', 'what', 'file', 'old', 'new', 'caught_by', 'preset', 'accepted', 'not_run', 'control'}
CAUGHT_SHARE = 0.9
TEST_LIMIT_S = 300
BUILD_LIMIT_S = 3600


class Rotten(Exception):
    """A record that does not fit the tree."""


def load(root=ROOT):
    with open(os.path.join(root, TABLE), 'rb') as file:
        mutants = tomllib.load(file)['mutant']
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


class Copy:
    """The tree beside the user's own, and its builds in it."""

    def __init__(self, jobs):
        self.tree = os.path.join(WORK, 'tree')
        self.jobs = jobs
        self.configured = set()

    def refresh(self):
        """What git knows and what it would add; files that are the same keep their times."""
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
        for path in sorted(wanted):
            self.write(path, read(os.path.join(ROOT, path)), os.path.join(ROOT, path))

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
        if preset not in self.configured:
            done = run(['cmake', *PRESETS[preset], '-B', folder], self.tree, BUILD_LIMIT_S)
            if done.returncode != 0:
                return done.stdout
            self.configured.add(preset)
        done = run(['nice', 'ninja', '-C', folder, f'-j{self.jobs}', *programs], self.tree, BUILD_LIMIT_S)
        return '' if done.returncode == 0 else done.stdout[-3000:]

    def passes(self, preset, test):
        """`test`: a program and, perhaps, which of its tests (--gtest_filter). Its failures' names, or
        none."""
        program, _, which = test.partition(' ')
        command = [os.path.join(self.build_folder(preset), 'tests', program)]
        if which:
            command.append(f'--gtest_filter={which}')
        environment = dict(os.environ)
        if preset == 'tsan':
            command = without_randomisation() + command
            environment['TSAN_OPTIONS'] = 'halt_on_error=1 ' + environment.get('TSAN_OPTIONS', '')
        done = run(command, self.build_folder(preset), TEST_LIMIT_S, environment)
        if which and done.returncode == 0 and ' 0 tests from ' in done.stdout:
            return [f'{test}: there is no such test']
        return [] if done.returncode == 0 else failures(program, done)


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


def without_randomisation():
    """Address-space randomisation with many bits and the thread sanitizer do not get along."""
    works = subprocess.run(['setarch', '-R', 'true'], capture_output=True, check=False).returncode == 0
    return ['setarch', '-R'] if works else []


def failures(program, done):
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


def try_mutant(mutant, copy):
    if 'not_run' in mutant:
        said = ', '.join(mutant.get('caught_by', [])) or mutant.get('accepted', '')
        return Outcome(mutant, 'not run', f'{mutant["not_run"]}; {said}')
    original = read(os.path.join(copy.tree, mutant['file']))
    said = mutant.get('caught_by', [])
    rest = [test for test in room_tests(mutant) if test not in said]
    copy.write(mutant['file'], mutated(mutant, copy.tree).encode())
    try:
        for tests in (said, rest):  # the room's are built only when those that should do not see it
            if not tests:
                continue
            wrong = copy.build(mutant['preset'], sorted({test.split()[0] for test in tests}))
            if wrong:
                return Outcome(mutant, 'error', f'it does not build:\n{wrong}')
            for test in tests:
                failed = copy.passes(mutant['preset'], test)
                if failed:
                    return judge(mutant, failed)
    finally:
        copy.write(mutant['file'], original)
    return judge(mutant, [])


def baseline_tests(mutants, preset):
    """What the mutants of a preset are put to: what should catch them, and all of their rooms, which are
    asked where that catches nothing. A part of a program is left out where the whole of it runs."""
    ran = [mutant for mutant in mutants if mutant['preset'] == preset and 'not_run' not in mutant]
    tests = {test for mutant in ran for test in mutant.get('caught_by', []) + room_tests(mutant)}
    return sorted(test for test in tests if ' ' not in test or test.split()[0] not in tests)


def check_baseline(mutants, copy, say):
    """Without a mutant every test passes: else its failure would say nothing. What fails."""
    failed = []
    for preset in PRESETS:
        tests = baseline_tests(mutants, preset)
        if not tests:
            continue
        say(f'without a mutant: {preset}, {len(tests)} tests')
        wrong = copy.build(preset, sorted({test.split()[0] for test in tests}))
        failed += [wrong] if wrong else [name for test in tests for name in copy.passes(preset, test)]
    return failed


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
    parser.add_argument('--only', nargs='+', metavar='ID', help='these mutants')
    parser.add_argument('--preset', choices=sorted(PRESETS), help='the mutants of this preset')
    parser.add_argument('-j', '--jobs', type=int, default=2, help='compilers at a time (2)')
    parser.add_argument('--no-baseline', action='store_true', help='trust that the tests pass')
    return parser.parse_args()


def main():
    options = arguments()
    try:
        mutants = load()
        for mutant in mutants:
            mutated(mutant)
    except Rotten as rotten:
        sys.exit(f'mutants: {rotten}')
    unknown = set(options.only or []) - {mutant['id'] for mutant in mutants}
    if unknown:
        sys.exit(f'mutants: there is no {", ".join(sorted(unknown))}')
    chosen = [mutant for mutant in mutants
              if (not options.only or mutant['id'] in options.only)
              and (not options.preset or mutant['preset'] == options.preset)]
    if options.list:
        for mutant in chosen:
            expected = mutant.get('not_run') or mutant.get('accepted') or ', '.join(mutant.get('caught_by', ['control']))
            print(f'{mutant["id"]:>4}  {mutant["preset"]:<6} {mutant["file"]}: {mutant["what"]} [{expected}]')
        return 0
    began = time.monotonic()

    def say(text):
        print(f'[{time.monotonic() - began:5.0f} s] {text}', flush=True)

    copy = Copy(options.jobs)
    copy.refresh()
    failed = [] if options.no_baseline else check_baseline(chosen, copy, say)
    if failed:
        print('\n'.join(failed))
        sys.exit('mutants: that fails without a mutant')
    outcomes = []
    for number, mutant in enumerate(chosen, 1):
        outcomes.append(try_mutant(mutant, copy))
        say(f'{number} of {len(chosen)}: {outcomes[-1].row().strip()}')
    lines, well = summary(outcomes, whole=not options.only and not options.preset)
    print('\n' + '\n'.join(lines))
    return 0 if well else 1


if __name__ == '__main__':
    sys.exit(main())
