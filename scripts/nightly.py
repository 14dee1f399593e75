#!/usr/bin/env python3
"""The long tests, in parts of at most 60 minutes. A part that was interrupted resumes: the steps that
passed at the same commit are left out. Each run of a part writes its row of bench/NIGHTLY.md.

    scripts/test.sh --nightly PART...      runs parts
    scripts/test.sh --nightly list         the parts, what each runs, and the rooms it is for
    scripts/test.sh --nightly rooms        the parts that what differs from origin/main, or from --since
                                           REV, asks for: an issue is resolved once they have run

Options: --minutes M begins no step after M minutes (60), --again runs the steps that passed, too,
--rest leaves out those that passed at an earlier commit: what a fault's mending asks for.
"""

import argparse
import collections
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time

import figures
import mutants
import quick_tests
import sanitizer_tests
import versions

ROOT = figures.ROOT
FOLDER = os.path.join(ROOT, 'build', 'nightly')
PAGE = os.path.join(ROOT, 'bench', 'NIGHTLY.md')
ALL_CASES = {'ELIXIR_EVERY_CASE': '1'}
MUTANT_PARTS = 8
PLAN_PARTS = 2
SKIPPED = 77  # a test's exit code
PLAN_CASES = 1000  # 250 take three to ten minutes of one core


class Step:
    """One command of a part. What passed is remembered by the step's name."""

    def __init__(self, name, *command, **environment):
        self.name = name
        self.command = command
        self.environment = environment


class Part:
    def __init__(self, what, rooms, builds, steps):
        self.what = what
        self.rooms = rooms  # under tests/; of a change in one of them this part is due. '*': any
        self.builds = builds  # presets that are built whole
        self.steps = steps  # a list, or a function that makes it once the presets are built


def labelled_steps(preset, label):
    """A step for each test of a preset with the label."""
    return [Step(f'{preset} {test["name"]}', 'ctest', '--test-dir', f'build/{preset}', '--output-on-failure',
                 '-R', f'^{re.escape(test["name"])}$')
            for test in quick_tests.shown_by_ctest(f'build/{preset}', '-L', f'^{label}$')['tests']]


def all_cases_steps(preset, names):
    """A step for each default test with such a name, run by itself: ctest's limits are for samples."""
    steps = []
    for test in quick_tests.shown_by_ctest(f'build/{preset}', *quick_tests.DEFAULT_RUN, '-R', names)['tests']:
        variables = dict(variable.split('=', 1)
                         for variable in quick_tests.properties_of(test).get('ENVIRONMENT', []))
        steps.append(Step(f'{preset} {test["name"]}', *test['command'],
                          **{'OMP_WAIT_POLICY': 'passive', **variables, **ALL_CASES}))
    return steps


def fuzz_steps():
    return [Step(f'fuzz {name}', 'scripts/fuzz.sh', '--no-build', '--seconds', '150', name)
            for name in sanitizer_tests.known_targets()]


def sanitizer_steps():
    """What the default run leaves out on a machine that is too slow for it."""
    run = ('ctest', '--output-on-failure', '-j', '3', *quick_tests.DEFAULT_RUN, '--test-dir')
    halts = 'halt_on_error=1'
    return [Step('sanitizers asan', *run, 'build/asan', UBSAN_OPTIONS=f'{halts} print_stacktrace=1'),
            # Address-space randomisation with many bits and this sanitizer do not get along.
            Step('sanitizers tsan', 'setarch', '-R', *run, 'build/tsan', TSAN_OPTIONS=halts)]


def newest_torch_steps():
    """All of tests/client with the newest torch, also on Python's libraries."""
    folder = 'build/release-torch' + versions.pinned_torch()[2].replace('.', '')
    return [Step('newest torch, whole', 'scripts/newest_setup.sh'),
            Step('newest torch, build', 'scripts/build.sh', '--torch', 'newest'),
            Step('newest torch, tests', 'ctest', '--test-dir', folder, '--output-on-failure', '-j', '2',
                 '-LE', '^(timing|nightly)$')]


# Programs that take a sample of their cases by default.
BIT_PARTS = 3
SAMPLES = {'cases-training': ('swing_test|torch_ways|client_profile|fakegpu_matrix|fakegpu_gradients|python_(exits|kills|ranks|trainer)',
                              ('client', 'fake_cuda')),
           'cases-programs': ('fakegpu_collective|fakegpu_errors|e2e_container|e2e_disturbed|e2e_run_health|e2e_families'
                              '|e2e_foreign(_losses)?$|e2e_plan$|e2e_ranks|e2e_surroundings',
                              ('client', 'daemon', 'e2e', 'fake_cuda', 'fake_nccl', 'planner')),
           'cases-other': ('failing_calls|optim_formats|models_config|models_convert|fuzz_corpus_test|job_schedules_test'
                           '|planner_search|planner_answers|planner_kept_regions|fault_kill'
                           '|elixird_saves|elixird_commit|elixird_test|daemon_logic|checkpoint_|job_exploration',
                           ('failing_calls', 'optim_cpu', 'models', 'fuzz', 'daemon', 'planner'))}


def runs_all_cases(name, labels=()):
    """Whether a part runs all cases of the test that ctest calls so."""
    sampled = any(re.search(pattern, name) for pattern, _ in SAMPLES.values())
    listed = [step.command[0] for part in parts().values() if not callable(part.steps) for step in part.steps]
    return sampled or 'nightly' in labels or any(os.path.basename(program) == name for program in listed)


def parts(since='origin/main'):
    found = {
        'timing': Part('rates and times of this machine, the goals of bench/', ('*',), ['release'],
                       lambda: labelled_steps('release', 'timing')),
        'programs': Part('examples, benchmarks, the demo, every command of the documentation', ('*',), ['release'],
                         lambda: labelled_steps('release', 'nightly')),
        'fuzz': Part('the decoders of foreign bytes, 150 s each', ('fuzz', 'shm', 'checkpoint', 'planner'), ['asan'],
                     fuzz_steps),
        'sanitizers': Part('the tests without LibTorch under the address, undefined-behaviour and thread sanitizers',
                           ('base', 'checkpoint', 'client', 'ctl', 'daemon', 'launcher', 'optim_cpu', 'planner', 'shm'),
                           ['asan', 'tsan'], sanitizer_steps()),
        'newest-torch': Part('tests/client with the newest torch', ('client', 'package'), ['release'],
                             newest_torch_steps()),
    }
    for name, (pattern, rooms) in SAMPLES.items():
        found[name] = Part('all cases of the tests that take a sample', rooms, ['release'],
                           lambda pattern=pattern: all_cases_steps('release', pattern))
    bits = 'build/release/tests/client_no_bit_changes_test'
    found['bits'] = Part('plans and modes that change no bit: every three values meet', ('client', 'daemon'), ['release'],
                         [Step('bits', bits, OMP_WAIT_POLICY='passive', **ALL_CASES)])
    for i in range(1, BIT_PARTS + 1):
        found[f'bits-{i}'] = Part(
            'the same: every combination of seven columns', (), ['release'],
            [Step(f'bits {i}', bits, OMP_WAIT_POLICY='passive', ELIXIR_CASE_PART=f'{i}/{BIT_PARTS}', **ALL_CASES)])
    for i in range(1, PLAN_PARTS + 1):
        found[f'plans-{i}'] = Part(
            f'{PLAN_CASES} random models and machines, seed {20260 + i}', ('planner',), ['release'],
            [Step(f'plans {i}', 'build/release/tests/planner_random_plans_test',
                  ELIXIR_RANDOM_CASES=str(PLAN_CASES), ELIXIR_RANDOM_SEED=str(20260 + i))])
    found['mutants'] = Part('mutants of what changed', ('*',), [],
                            [Step('mutants', 'scripts/mutants.py', '--since', since, '--minutes', '55')])
    for i in range(1, MUTANT_PARTS + 1):
        found[f'mutants-{i}'] = Part(
            'mutants (scripts/mutants.py)', (), [],
            [Step(f'mutants {i}', 'scripts/mutants.py', '--part', f'{i}/{MUTANT_PARTS}', '--minutes', '55')])
    return found


def head():
    return subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, check=True, capture_output=True,
                          text=True).stdout.strip()


class Progress:
    """The commit at which each step passed last."""

    def __init__(self, path, commit, earlier=False):
        """`earlier`: a commit before this one counts, too."""
        self.path = path
        self.commit = commit
        self.earlier = earlier
        self.passed_at = {}
        if os.path.isfile(path):
            with open(path, encoding='utf-8') as file:
                self.passed_at = json.load(file)

    def passed(self, name):
        return name in self.passed_at and (self.earlier or self.passed_at[name] == self.commit)

    def keep(self, name):
        self.passed_at[name] = self.commit
        self.write()

    def forget(self, name):
        if self.passed_at.pop(name, None):
            self.write()

    def write(self):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, 'w', encoding='utf-8') as file:
            json.dump(self.passed_at, file)

    def told(self, steps):
        """Where not all passed at this commit: how many at which."""
        others = collections.Counter(self.passed_at[step.name] for step in steps if step.name in self.passed_at)
        del others[self.commit]
        return ''.join(f', {count} of them at {commit}' for commit, count in sorted(others.items()))


def run_steps(steps, progress, minutes, run, now=time.monotonic):
    """(failed, left): names of the steps that failed, and of those that were not begun or not finished."""
    began, failed = now(), []
    for i, step in enumerate(steps):
        if progress.passed(step.name):
            continue
        if now() - began > 60 * minutes:
            return failed, [left.name for left in steps[i:] if not progress.passed(left.name)]
        code = run(step)
        if code in (0, SKIPPED):
            progress.keep(step.name)
            continue
        progress.forget(step.name)
        if code == mutants.UNFINISHED:
            return failed, [left.name for left in steps[i:] if not progress.passed(left.name)]
        failed.append(step.name)
    return failed, []


def result_of(steps, failed, left):
    if failed:
        return f'failed: {", ".join(failed)}'
    if left:
        return f'not finished: {len(steps) - len(left)} of {len(steps)} steps passed'
    return f'passed: {len(steps)} step{"s" if len(steps) != 1 else ""}'


ROW = re.compile(r'^\| `([\w-]+)` \|.*\|$', re.M)


def with_row(text, name, row):
    """The page with this row in place of the part's last one, in the order of the names."""
    rows = {match.group(1): match.group(0) for match in ROW.finditer(text)}
    rows[name] = row
    head_of_page = ROW.sub('', text).rstrip()
    return head_of_page + '\n' + '\n'.join(rows[key] for key in sorted(rows)) + '\n'


def write_row(name, result, minutes):
    with open(PAGE, encoding='utf-8') as file:
        text = file.read()
    row = f'| `{name}` | {datetime.date.today().isoformat()} | {head()} | {result} | {minutes:.0f} |'
    with open(PAGE, 'w', encoding='utf-8') as file:
        file.write(with_row(text, name, row))


def run_step(step):
    print(f'=== nightly: {step.name}', flush=True)
    return subprocess.run(step.command, cwd=ROOT, check=False,
                          env={**os.environ, **step.environment}).returncode


def run_part(name, part, options):
    began = time.monotonic()
    for preset in part.builds:
        subprocess.run(['scripts/build.sh', preset], cwd=ROOT, check=True)
    steps = part.steps() if callable(part.steps) else part.steps
    if not steps:
        sys.exit(f'nightly: {name} has no step; its tests are gone or have other names')
    progress = Progress(os.path.join(FOLDER, f'{name}.json'), head(), options.rest)
    if options.again:
        progress.passed_at = {}
    failed, left = run_steps(steps, progress, options.minutes, run_step)
    result = result_of(steps, failed, left)
    if not failed and not left:
        result += progress.told(steps)
    write_row(name, result, (time.monotonic() - began) / 60)
    print(f'nightly: {name}: {result}', flush=True)
    return not failed and not left


def due_parts(known, distance):
    """Of a change, by the rooms of tests that it touches."""
    rooms = {room for room, far in distance.items() if far == 0}
    return [name for name, part in known.items() if rooms and ('*' in part.rooms or rooms & set(part.rooms))]


def main():
    # A shell that starts this in its background has it ignore both, and the tests would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='+', metavar='PART', help='a part, list, or rooms')
    parser.add_argument('--minutes', type=float, default=60, help='begins no step after M minutes (60)')
    parser.add_argument('--again', action='store_true', help='also the steps that passed at this commit')
    parser.add_argument('--rest', action='store_true', help='only the steps that have not passed at an earlier commit')
    parser.add_argument('--since', default='origin/main', help='of rooms and mutants: the revision to compare with')
    options = parser.parse_args()
    known = parts(options.since)
    if options.parts == ['list']:
        for name, part in known.items():
            rooms = 'any room' if '*' in part.rooms else ', '.join(part.rooms) or 'of no change'
            print(f'{name:<16} {part.what} [{rooms}]')
        return 0
    if options.parts == ['rooms']:
        changed = quick_tests.changed_files(options.since)
        print('\n'.join(due_parts(known, quick_tests.test_rooms_of(changed, figures.Tree()))))
        return 0
    unknown = [name for name in options.parts if name not in known]
    if unknown:
        sys.exit(f'nightly: there is no part {", ".join(unknown)}; parts are: {", ".join(known)}')
    well = [run_part(name, known[name], options) for name in options.parts]
    return 0 if all(well) else 1


if __name__ == '__main__':
    sys.exit(main())
