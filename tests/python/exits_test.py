"""Interpreters that end without `del`, in twenty states: code 0, no word, and elixird has no session of theirs."""

import unittest

import python_case
from python_case import EVERY_CASE, PythonCase

python_case.need('numpy')

STATES = 20


class Exits(PythonCase):
    def test_interpreters_end_without_a_word(self):
        lines = self.warm_lines('exits_program.py', 200 if EVERY_CASE else STATES)
        self.assertEqual(len({line['case'] for line in lines}), STATES)
        for line in lines:
            with self.subTest(line['case']):
                self.assertEqual((line['codes'], line['output']), ([0], ''))
        self.await_no_jobs()


if __name__ == '__main__':
    unittest.main()
