"""The list of mutants fits the tree, and scripts/mutants.py tells one that is caught from one that is
not."""

import argparse
import contextlib
import fnmatch
import glob
import io
import os
import re
import sys
import tempfile
import tomllib
import unittest
from unittest import mock

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import mutants  # noqa: E402  (where it is, is known only now)


def tests_by_program():
    """Of each test program, and of each Python test ("e2e_ranks"), the names of its tests."""
    return {program: set().union(*(tests_of(mutants.read(path).decode()) for path in paths))
            for program, paths in mutants.test_sources().items()}


def tests_of(text):
    """As GoogleTest prints them, where a suite with parameters has no prefix and no number; Python's methods."""
    return {f'{suite}.{name}' for suite, name in
            re.findall(r'^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s+(\w+)\)', text, re.M)} | set(
                re.findall(r'def (test_\w+)', text))


def torch_programs():
    """Test programs that only a build with LibTorch has."""
    def read(*path):
        return re.sub(r'#[^\n]*', '', mutants.read(os.path.join(REPOSITORY, 'tests', *path)).decode())

    with_torch = re.search(r'if\(ELIXIR_WITH_TORCH\)\s+list\(APPEND _rooms ([\w ]+)\)', read('CMakeLists.txt'))
    texts = [read(room, 'CMakeLists.txt') for room in with_torch.group(1).split()]
    texts.append(read('client', 'CMakeLists.txt').partition('if(NOT ELIXIR_WITH_TORCH)')[2])
    return {program for text in texts for program in re.findall(r'elixir_(?:gpu_)?test\((\w+)', text)}


def without_parameters(which):
    """Modes/Suite.Name/Alone and Suite/*.Name are tests of Suite.Name."""
    suite, _, name = which.partition('.')
    parts = suite.split('/')
    suite = parts[0] if parts[-1] in ('*', '0') else parts[-1]
    return f'{suite}.{name.split("/")[0]}' if name else suite


def catches(said, heir):
    """Whether a record's caught_by runs the heir, or a part of it."""
    program, _, which = said.partition(' ')
    heirs_program, _, heirs_test = heir.partition(' ')
    which, heirs_test = without_parameters(which).lstrip('*'), without_parameters(heirs_test).lstrip('*')
    return program == heirs_program and (not which or fnmatch.fnmatch(heirs_test, '*' + which) or
                                         fnmatch.fnmatch(which, '*' + heirs_test))


class TheList(unittest.TestCase):
    def setUp(self):
        self.mutants = mutants.load()

    def test_every_text_is_in_its_file_once(self):
        for mutant in self.mutants:
            self.assertNotEqual(mutants.mutated(mutant), '')

    def test_the_tests_that_it_names_are_there(self):
        tests = tests_by_program()
        named = [test for mutant in self.mutants for test in mutant.get('caught_by', [])]
        named += [test for room in mutants.ROOM_TESTS.values() for test in room]
        self.assertGreater(len(named), len(self.mutants))
        for name in named:
            program, _, which = name.partition(' ')
            self.assertIn(program, tests)
            self.assertTrue(program.endswith('_test'), f'{name}: scripts/mutants.py runs programs of GoogleTest alone')
            if which:
                self.assertTrue(fnmatch.filter(tests[program], without_parameters(which)), name)

    def test_each_room_that_has_mutants_has_tests(self):
        for mutant in self.mutants:
            if 'not_run' not in mutant:
                self.assertTrue(mutants.room_tests(mutant), mutant['id'])

    def test_each_preset_builds_the_tests_of_its_mutants(self):
        with_torch = torch_programs()
        self.assertIn('models_config_test', with_torch)
        self.assertIn('client_training_test', with_torch)
        self.assertNotIn('client_core_test', with_torch)
        for mutant in self.mutants:
            if 'not_run' not in mutant and mutant['preset'] != 'torch':
                named = mutant.get('caught_by', []) + mutants.room_tests(mutant)
                self.assertEqual([test for test in named if test.split()[0] in with_torch], [],
                                 f'{mutant["id"]}: needs preset = "torch"')

    def test_there_is_a_control(self):
        self.assertTrue(any('control' in mutant for mutant in self.mutants))


class Heirs(unittest.TestCase):
    """tests/mutants/heirs: each test that was removed has one that keeps its promise, and a mutant that
    shows it."""

    def setUp(self):
        self.mutants = {mutant['id']: mutant for mutant in mutants.load()}
        self.tests = tests_by_program()
        self.removed = []
        for table in glob.glob(os.path.join(REPOSITORY, 'tests', 'mutants', 'heirs', '*.toml')):
            with open(table, 'rb') as file:
                self.removed += tomllib.load(file)['removed']

    def test_each_heir_is_there_and_catches_its_mutant(self):
        for row in self.removed:
            with self.subTest(test=row['test']):
                self.assertEqual(set(row), {'test', 'heir', 'mutant'})
                program, _, which = row['heir'].partition(' ')
                self.assertTrue(fnmatch.filter(self.tests[program], without_parameters(which)) if which else True)
                self.assertIn(row['mutant'], self.mutants)
                caught_by = self.mutants[row['mutant']].get('caught_by', [])
                self.assertTrue(any(catches(said, row['heir']) for said in caught_by), caught_by)

    def test_what_is_removed_is_gone(self):
        for row in self.removed:
            program, _, which = row['test'].partition(' ')
            self.assertNotIn(which, self.tests.get(program, set()), row['test'])


class Parts(unittest.TestCase):
    LIST = [{'id': str(i), 'preset': 'tsan' if i % 2 else 'plain', 'file': f'daemon/{i % 3}.cpp'} for i in range(7)]

    def test_each_mutant_is_in_one_part(self):
        for parts in (1, 2, 5, 7, 9):
            ids = [mutant['id'] for i in range(parts) for mutant in mutants.part_of(self.LIST, f'{i + 1}/{parts}')]
            self.assertEqual(sorted(ids), sorted(mutant['id'] for mutant in self.LIST))

    def test_what_is_no_part_is_an_error(self):
        for part in ('', '1', '0/2', '3/2', 'a/b', '1/'):
            with self.assertRaises(ValueError):
                mutants.part_of(self.LIST, part)


class Owed(unittest.TestCase):
    LIST = [{'id': str(i), 'file': f'{i}.cpp', 'old': 'a'} for i in range(4)]

    def test_a_change_asks_for_new_mutants_and_those_of_its_files(self):
        before = [*self.LIST[:2], {**self.LIST[2], 'old': 'b'}]
        self.assertEqual([mutant['id'] for mutant in mutants.owed(self.LIST, before, ['1.cpp', 'else.cpp'])],
                         ['1', '2', '3'])
        self.assertEqual(mutants.owed(self.LIST, self.LIST, []), [])

    def test_the_list_of_a_revision(self):
        listed = {mutant['id'] for mutant in mutants.load_of('HEAD')}
        self.assertGreater(len(listed & {mutant['id'] for mutant in mutants.load()}), 100)


class Results(unittest.TestCase):
    MUTANT = {'id': '1', 'what': 'made up', 'caught_by': ['a']}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, 'results.tsv')

    def kept(self, verdict, **changed):
        results = mutants.Results(self.path, str, 'abc')
        results.keep(mutants.Outcome({**self.MUTANT, **changed}, verdict, 'a\ttest'), {'1', '2'})
        return mutants.Results(self.path, str, 'abc')

    def test_a_result_is_read_as_it_was_kept(self):
        results = self.kept('caught')
        self.assertTrue(results.has(self.MUTANT))
        outcome = results.outcome(self.MUTANT)
        self.assertEqual((outcome.verdict, outcome.detail), ('caught', 'a test'))

    def test_a_result_of_another_record_mutated_file_or_test_does_not_count(self):
        self.assertFalse(self.kept('caught').has({**self.MUTANT, 'what': 'else'}))
        with tempfile.TemporaryDirectory() as root:
            def write(path, text):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), 'w', encoding='utf-8') as file:
                    file.write(text)
                return mutants.Keys(root).of(mutant)

            mutant = {**self.MUTANT, 'file': 'a.cpp', 'caught_by': ['a_test A.B']}
            write('tests/a/CMakeLists.txt', 'elixir_test(a_test SOURCES a_test.cpp more.cpp LINK a)')
            keys = [write('a.cpp', '1'), write('a.cpp', '2'), write('tests/a/a_test.cpp', '1'),
                    write('tests/a/more.cpp', '1')]
            self.assertEqual(len(set(keys)), 4)
            self.assertEqual(write('tests/a/others.cpp', '1'), keys[-1])

    def test_an_error_runs_again(self):
        self.assertFalse(self.kept('error').has(self.MUTANT))

    def test_a_mutant_that_left_the_list_loses_its_row(self):
        self.kept('caught', id='3')
        self.assertEqual(set(self.kept('caught').rows), {'1'})


class MadeUpCopy(mutants.Copy):
    """Builds nothing. Its tests look for a word in the file."""

    def __init__(self, tree):
        super().__init__(jobs=1)
        self.tree = tree
        self.ran = []
        self.limits_s = []

    def refresh(self):
        return 'a tree'

    def build(self, preset, programs):
        return 'no such program' if 'broken' in programs else ''

    def failures(self, preset, test, limit_s):
        self.ran.append(test)
        self.limits_s.append(limit_s)
        holds = test.split()[1] in mutants.read(os.path.join(self.tree, 'daemon/a.cpp')).decode()
        return [] if holds else [test]


class MadeUpMutants(unittest.TestCase):
    TEXT = 'int size = 7;  // units\nint count = 3;\n'

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.makedirs(os.path.join(folder.name, 'daemon'))
        self.copy = MadeUpCopy(folder.name)
        self.copy.write('daemon/a.cpp', self.TEXT.encode())
        self.path = os.path.join(folder.name, 'baseline.json')
        self.baseline = mutants.Baseline(self.path, 'a tree')
        self.rooms = dict(mutants.ROOM_TESTS)
        mutants.ROOM_TESTS['daemon'] = ['room count']
        self.addCleanup(mutants.ROOM_TESTS.update, self.rooms)

    def outcome(self, old, new, **expected):
        mutant = {'id': '1', 'what': 'made up', 'file': 'daemon/a.cpp', 'old': old, 'new': new,
                  'preset': 'plain', **(expected or {'caught_by': ['said size']})}
        outcome = mutants.try_mutant(mutant, self.copy, self.baseline)
        self.assertEqual(mutants.read(os.path.join(self.copy.tree, 'daemon/a.cpp')).decode(), self.TEXT)
        return outcome

    def test_what_a_test_sees_is_caught_and_the_rooms_tests_need_not_run(self):
        self.assertEqual(self.outcome('size', 'length').verdict, 'caught')
        self.assertEqual(self.copy.ran, ['said size'] * 2)  # without the mutant, and with it

    def test_what_only_the_room_sees_is_caught_by_that(self):
        outcome = self.outcome('count', 'number')
        self.assertEqual((outcome.verdict, outcome.detail), ('caught', 'room count'))

    def test_what_nobody_sees_survives_and_that_is_a_failure(self):
        outcome = self.outcome('// units', '// bytes')
        self.assertEqual(outcome.verdict, 'survived')
        self.assertEqual(self.copy.ran, ['said size', 'said size', 'room count', 'room count'])
        lines, well = mutants.summary([outcome], whole=False)
        self.assertFalse(well)
        self.assertIn('survived', lines[0])

    def test_a_reason_makes_a_survivor_one_that_is_accepted(self):
        outcome = self.outcome('// units', '// bytes', accepted='a comment')
        self.assertEqual((outcome.verdict, outcome.good()), ('accepted', True))

    def test_a_reason_that_is_no_longer_true_is_a_failure(self):
        self.assertFalse(self.outcome('count', 'number', accepted='nobody looks').good())

    def test_a_control_that_is_caught_is_a_failure(self):
        self.assertTrue(self.outcome('// units', '// bytes', control=True).good())
        self.assertFalse(self.outcome('count', 'number', control=True).good())

    def test_what_does_not_build_is_not_caught(self):
        self.assertEqual(self.outcome('size', 'length', caught_by=['broken size']).verdict, 'error')

    # Such a test says nothing about the mutant.
    def test_a_test_that_fails_without_a_mutant_is_an_error(self):
        outcome = self.outcome('size', 'length', caught_by=['said weight'])
        self.assertEqual(outcome.verdict, 'error')
        self.assertIn('without a mutant, said weight fails', outcome.detail)
        mutants.ROOM_TESTS['daemon'] = ['room weight']
        self.assertEqual(self.outcome('// units', '// bytes').verdict, 'error')

    def test_a_tests_own_time_limits_it(self):
        for seconds, limit_s in ((0.5, 25), (12, 140), (100, 300)):
            self.baseline.keep('plain said size', seconds)
            self.copy.limits_s.clear()
            self.outcome('size', 'length')
            self.assertEqual(self.copy.limits_s, [limit_s])

    def test_times_are_kept_for_the_same_tree(self):
        self.outcome('size', 'length')
        self.copy.ran.clear()
        self.baseline = mutants.Baseline(self.path, 'a tree')
        self.outcome('size', 'length')
        self.assertEqual(self.copy.ran, ['said size'])
        self.assertEqual(mutants.Baseline(self.path, 'another tree').seconds, {})

    def run_all(self, count, workers, **options):
        """The rows of `count` mutants, by workers that each have a copy."""
        chosen = [{'id': str(i), 'what': 'made up', 'file': 'daemon/a.cpp', 'old': 'size', 'new': f'length{i}',
                   'preset': 'plain', 'caught_by': ['said size']} for i in range(count)]
        results = mutants.Results(os.path.join(os.path.dirname(self.path), 'results.tsv'), str, 'abc')
        options = argparse.Namespace(**{'again': False, 'minutes': None, 'jobs': 1, 'workers': workers, **options})
        trees = []

        def made_up_copy(_, number):
            copy = MadeUpCopy(os.path.join(os.path.dirname(self.path), f'tree-{number}'))
            copy.write('daemon/a.cpp', self.TEXT.encode())
            trees.append(copy.tree)
            return copy

        with mock.patch.object(mutants, 'Copy', made_up_copy), \
                mock.patch.object(mutants, 'WORK', os.path.dirname(self.path)), \
                contextlib.redirect_stdout(io.StringIO()):
            mutants.run_mutants(chosen, options, results, {mutant['id'] for mutant in chosen})
        self.assertEqual(len(set(trees)), min(workers, count) or 1)
        return results.rows

    def test_workers_ask_each_mutant_once(self):
        for workers in (1, 2, 3, 5):
            rows = self.run_all(7, workers, again=True)
            self.assertEqual(sorted((name, row[0]) for name, row in rows.items()), [(str(i), 'caught') for i in range(7)])
        self.assertEqual(self.run_all(0, 2), rows)

    def test_no_mutant_begins_after_the_minutes(self):
        self.assertEqual(self.run_all(7, 2, minutes=1e-9), {})

    def test_a_workers_fault_is_the_runs(self):
        with mock.patch.object(mutants, 'try_mutant', side_effect=OSError('full')), self.assertRaises(OSError):
            self.run_all(7, 2)

    def test_one_in_ten_may_be_accepted(self):
        caught = self.outcome('size', 'length')
        accepted = self.outcome('// units', '// bytes', accepted='a comment')
        self.assertTrue(mutants.summary([caught] * 9 + [accepted])[1])
        self.assertFalse(mutants.summary([caught] * 8 + [accepted])[1])

    def test_a_text_that_is_gone_or_there_twice_is_rotten(self):
        for old in ('gone', 'int '):
            with self.assertRaises(mutants.Rotten):
                self.outcome(old, 'x')


if __name__ == '__main__':
    unittest.main()
