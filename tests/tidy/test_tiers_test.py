"""Which tests run when: each has a rung and a time limit, --quick takes what a change can break soonest,
and a nightly part resumes and writes its row."""

import os
import re
import sys
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
BUILD = os.path.realpath(os.path.join(os.environ.get('ELIXIR_BIN_DIR', f'{REPOSITORY}/build/release/bin'), '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import mutants  # noqa: E402  (where they are, is known only now)
import nightly  # noqa: E402
import quick_tests  # noqa: E402
import sanitizer_tests  # noqa: E402
import test_rungs  # noqa: E402

LIMIT_S = 1200  # docs/design/tests.md


def listed():
    """ctest's entries: name -> its properties."""
    return {test['name']: quick_tests.properties_of(test) for test in quick_tests.shown_by_ctest(BUILD)['tests']}


def has_limit(properties):
    labels = set(properties.get('LABELS', []))
    return bool(labels & {'timing', 'nightly'}) or 0 < float(properties.get('TIMEOUT', 0)) <= LIMIT_S


class Entries(unittest.TestCase):
    def setUp(self):
        self.entries = listed()
        self.assertGreater(len(self.entries), 100)

    def test_each_has_a_rung(self):
        rules = test_rungs.patterns()
        self.assertEqual([name for name in self.entries if test_rungs.rung_of(name, rules) == 0], [])

    def test_each_of_the_default_run_has_a_time_limit(self):
        self.assertEqual([name for name, properties in self.entries.items() if not has_limit(properties)], [])

    def test_what_has_no_limit_is_seen(self):
        for properties in ({}, {'TIMEOUT': 1201.0}, {'TIMEOUT': 2400.0, 'LABELS': ['e2e']}):
            self.assertFalse(has_limit(properties), properties)
        self.assertTrue(has_limit({'TIMEOUT': 2400.0, 'LABELS': ['nightly']}))


class Rungs(unittest.TestCase):
    TEXT = '| rung | tests |\n|---|---|\n| 3 | `daemon_*` `a_test` |\n| 1 | `*_test` |\n'

    def test_the_first_pattern_decides(self):
        rules = test_rungs.patterns(self.TEXT)
        self.assertEqual([test_rungs.rung_of(name, rules) for name in ('a_test', 'daemon_test', 'b_test', 'c')],
                         [3, 3, 1, 0])
        log = ' 1/4 Test  #1: a_test ....   Passed    1.50 sec\n'
        log += ' 2/4 Test #12: b_test ....***Failed    2.00 sec\n      Start 3: b_test\n'
        log += ' 3/4 Test  #3: daemon_x ..   Passed    3.00 sec\n 4/4 Test  #4: c ...   Passed    1.00 sec\n'
        self.assertEqual(test_rungs.seconds_by_rung(log, rules), {3: 4.5, 1: 2.0, 0: 1.0})


class Quick(unittest.TestCase):
    def test_the_nearest_and_the_shortest_come_first(self):
        tests = [('far', 'client'), ('long', 'daemon'), ('short', 'daemon'), ('other', 'planner')]
        seconds = {'far': 10, 'long': 60, 'short': 5, 'other': 1}
        distance = {'daemon': 0, 'client': 1}
        self.assertEqual(quick_tests.choose(tests, distance, seconds, 60), (['short', 'long', 'far'], []))
        self.assertEqual(quick_tests.choose(tests, distance, seconds, 20), (['short', 'far'], ['long']))

    def test_a_change_reaches_the_rooms_that_include_it(self):
        tree = nightly.figures.Tree()
        distance = quick_tests.test_rooms_of(['optim_cpu/adam.cpp'], tree)
        self.assertEqual(distance['optim_cpu'], 0)
        self.assertGreater(distance['daemon'], 0)
        self.assertNotIn('ctl', quick_tests.test_rooms_of(['models/gpt2.cpp'], tree))
        self.assertEqual(quick_tests.test_rooms_of(['tests/ctl/status_test.cpp'], tree), {'ctl': 0})

    def test_a_test_belongs_to_the_list_that_adds_it(self):
        rooms = dict(quick_tests.listed_tests()) if BUILD == quick_tests.BUILD else {}
        for name, room in (('tidy_layers', 'tidy'), ('base_test', 'base'), ('fakegpu_train', 'fake_cuda')):
            if name in rooms:
                self.assertEqual(rooms[name], room)


class Lists(unittest.TestCase):
    def test_a_list_leaves_the_log_of_a_run_alone(self):
        with tempfile.TemporaryDirectory() as build:
            log = os.path.join(build, 'Testing', 'Temporary', 'LastTest.log')
            os.makedirs(os.path.dirname(log))
            for path, text in ((log, 'kept'), (os.path.join(build, 'CTestTestfile.cmake'), 'add_test(a "true")\n')):
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
            self.assertEqual([test['name'] for test in quick_tests.shown_by_ctest(build)['tests']], ['a'])
            with open(log, encoding='utf-8') as file:
                self.assertEqual(file.read(), 'kept')


class Sanitizers(unittest.TestCase):
    """Which rooms a default run repeats under sanitizers."""

    def setUp(self):
        self.tree = nightly.figures.Tree()

    def rooms(self, *changed):
        return sanitizer_tests.rooms_of(changed, self.tree)

    def test_they_are_those_whose_code_has_changed(self):
        self.assertEqual(self.rooms('planner/choices.h', 'tests/shm/layout_test.cpp', 'docs/planner.md', 'scripts/tidy.py',
                                    'ctl/CMakeLists.txt'), {'planner', 'shm'})
        self.assertEqual(self.rooms(), set())

    def test_they_are_all_where_something_shared_has_changed_or_no_revision_is_known(self):
        self.assertIsNone(self.rooms('tests/support/matchers.h'))
        self.assertIsNone(sanitizer_tests.rooms_of(None, self.tree))

    def test_a_decoder_is_fuzzed_for_the_rooms_that_it_reaches(self):
        everything = sanitizer_tests.fuzz_targets(None, self.tree)
        self.assertIn('job', sanitizer_tests.fuzz_targets({'daemon'}, self.tree))
        self.assertIn('pickle', sanitizer_tests.fuzz_targets({'models'}, self.tree))
        self.assertNotIn('message', sanitizer_tests.fuzz_targets({'planner'}, self.tree))
        for name in everything:
            self.assertTrue(sanitizer_tests.rooms_of_target(f'tests/fuzz/fuzz_{name}.cpp', self.tree), name)


class Nightly(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, 'part.json')
        self.steps = [nightly.Step(name, 'true') for name in ('a', 'b', 'c')]
        self.ran = []

    def run_steps(self, commit='one', fails=(), seconds=0, earlier=False, code=1):
        clock = iter(range(0, 100000, seconds or 1))
        self.ran = []

        def run(step):
            self.ran.append(step.name)
            return code if step.name in fails else 0
        self.progress = nightly.Progress(self.path, commit, earlier)
        return nightly.run_steps(self.steps, self.progress, 60, run, lambda: next(clock))

    def test_what_passed_at_the_same_commit_is_left_out(self):
        self.assertEqual(self.run_steps(fails=('b',)), (['b'], []))
        self.assertEqual(self.run_steps(), ([], []))
        self.assertEqual(self.ran, ['b'])
        self.run_steps(commit='two')
        self.assertEqual(self.ran, ['a', 'b', 'c'])

    def test_the_rest_is_what_passed_at_no_earlier_commit(self):
        self.run_steps(fails=('b',))
        self.assertEqual(self.run_steps(commit='two', earlier=True), ([], []))
        self.assertEqual(self.ran, ['b'])
        self.assertEqual(self.progress.told(self.steps), ', 2 of them at one')
        self.run_steps(commit='three')
        self.assertEqual(self.progress.told(self.steps), '')

    def test_what_fails_has_passed_nowhere(self):
        self.run_steps()
        self.run_steps(commit='two', fails=('c',))
        self.run_steps(commit='three', earlier=True)
        self.assertEqual(self.ran, ['c'])

    def test_after_its_minutes_no_step_begins(self):
        self.assertEqual(self.run_steps(seconds=1900), ([], ['b', 'c']))
        self.assertEqual(self.run_steps(), ([], []))
        self.assertEqual(self.ran, ['b', 'c'])

    def test_a_step_that_did_not_finish_is_left_and_so_is_what_follows(self):
        self.assertEqual(self.run_steps(fails=('b',), code=mutants.UNFINISHED), ([], ['b', 'c']))
        self.assertEqual(self.run_steps(), ([], []))
        self.assertEqual(self.ran, ['b', 'c'])

    def test_what_cannot_run_here_is_no_failure(self):
        self.assertEqual(self.run_steps(fails=('b',), code=nightly.SKIPPED), ([], []))

    def test_a_row_takes_the_place_of_the_parts_last_one(self):
        page = '# Page\n\n| part |\n|---|\n| `b` | old |\n| `c` | kept |\n'
        page = nightly.with_row(page, 'b', '| `b` | new |')
        self.assertEqual(nightly.with_row(page, 'a', '| `a` | first |'),
                         '# Page\n\n| part |\n|---|\n| `a` | first |\n| `b` | new |\n| `c` | kept |\n')

    def test_the_result_names_what_failed_and_what_is_left(self):
        self.assertEqual(nightly.result_of(self.steps, ['b'], []), 'failed: b')
        self.assertEqual(nightly.result_of(self.steps, [], ['c']), 'not finished: 2 of 3 steps passed')
        self.assertEqual(nightly.result_of(self.steps, [], []), 'passed: 3 steps')

    def test_each_changed_room_asks_for_its_parts(self):
        known = nightly.parts()
        self.assertIn('plans-1', nightly.due_parts(known, {'planner': 0}))
        self.assertNotIn('plans-1', nightly.due_parts(known, {'client': 0, 'planner': 1}))
        self.assertIn('mutants', nightly.due_parts(known, {'client': 0}))
        self.assertNotIn('mutants-1', nightly.due_parts(known, {'client': 0}))
        self.assertEqual(nightly.due_parts(known, {}), [])

    def test_rooms_of_parts_are_rooms(self):
        rooms = set(os.listdir(os.path.join(REPOSITORY, 'tests'))) | {'*'}
        for part in nightly.parts().values():
            self.assertLessEqual(set(part.rooms), rooms)


ASKS = re.compile(r'\bevery_case\(\)|\bELIXIR_EVERY_CASE\b|\bNIGHTLY\b')
IMPORT = re.compile(r'^\s*(?:from|import) .*$', re.M)
PROGRAM = re.compile(r'\belixir_test\((\w+)\s+SOURCES((?:\s+[\w./]+\.cpp)+)')


def asks_for_all_cases(text):
    return bool(ASKS.search(IMPORT.sub('', text)))


def test_files(tree):
    """A C++ test of ctest -> its sources and what they include of tests/."""
    found = {}
    for path in tree.tracked('tests/*/CMakeLists.txt', 'tests/*/*/CMakeLists.txt'):
        for name, sources in PROGRAM.findall(tree.read(path)):
            front = [os.path.normpath(os.path.join(os.path.dirname(path), source)) for source in sources.split()]
            files = set()
            while front:
                file = front.pop()
                if file not in files and file.startswith('tests/') and not file.endswith('/every_case.h'):
                    files.add(file)
                    front += tree.includes.get(file, [])
            found[name] = files
    return found


class AllCases(unittest.TestCase):
    """What a default run takes a sample of, some part runs whole."""

    def test_what_asks_for_all_cases_has_a_part(self):
        tree = nightly.figures.Tree()
        entries = {test['name']: test for test in quick_tests.shown_by_ctest(BUILD)['tests']}
        files = {name: of for name, of in test_files(tree).items() if name in entries}
        self.assertGreater(len(files), 30)
        for name, entry in entries.items():
            scripts = [os.path.relpath(word, REPOSITORY) for word in entry.get('command', [])
                       if word.endswith('_test.py')]
            files.setdefault(name, set()).update(scripts)
        covered = {file for name, of in files.items() for file in of
                   if nightly.runs_all_cases(name, quick_tests.properties_of(entries[name]).get('LABELS', []))}
        asking = {file for of in files.values() for file in of if asks_for_all_cases(tree.read(file))}
        asking -= {os.path.relpath(os.path.realpath(__file__), REPOSITORY)}  # what is planted below
        self.assertGreater(len(asking), 20)
        self.assertEqual(sorted(asking - covered), [], 'no part of scripts/nightly.py runs all cases of these')

    def test_what_has_no_part_is_seen(self):
        self.assertTrue(asks_for_all_cases('import harness\nfrom harness import program\nif harness.NIGHTLY: pass'))
        self.assertTrue(asks_for_all_cases('for (int i = 0; i < (every_case() ? 50 : 2); ++i) {'))
        self.assertFalse(asks_for_all_cases('from harness import NIGHTLY, program\n'))
        self.assertTrue(nightly.runs_all_cases('client_no_bit_changes_test'))
        self.assertTrue(nightly.runs_all_cases('fakegpu_collective'))
        self.assertFalse(nightly.runs_all_cases('fakegpu_planted'))


if __name__ == '__main__':
    unittest.main()
