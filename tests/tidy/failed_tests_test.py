"""What scripts/failed_tests.py shows of a run: what failed, and how, without what passed."""

import os
import sys
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import failed_tests  # noqa: E402  (where it is, is known only now)

RULE = '-' * 58 + '\n'


def tested(name, output, verdict):
    """A test's part of ctest's LastTest.log."""
    return (f'1/9 Testing: {name}\n1/9 Test: {name}\nCommand: "{name}"\nDirectory: /tmp\n"{name}" start time: now\n'
            f'Output:\n{RULE}{output}<end of output>\nTest time =   0.10 sec\n{RULE}{verdict}\n'
            f'"{name}" end time: now\n{RULE}\n')


GOOGLE_TEST = '''[ RUN      ] Suite.Passes
a line of what passed
[       OK ] Suite.Passes (1 ms)
[ RUN      ] Suite.Fails
file.cpp:12: Failure
[  FAILED  ] Suite.Fails (2 ms)
[ RUN      ] Suite.IsSkipped
[  SKIPPED ] Suite.IsSkipped (0 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Suite.Fails
'''


def shown(log, lines=60):
    return list(failed_tests.failures(log, lines))


class FailedTests(unittest.TestCase):
    def test_nothing_of_what_passed_or_was_skipped(self):
        self.assertEqual(shown(tested('good', 'fine\n', 'Test Passed.') + tested('gpu', 'no GPU\n', 'Test Skipped.')), [])

    def test_of_a_googletest_program_the_tests_that_failed(self):
        log = tested('good', 'fine\n', 'Test Passed.') + tested('bad', GOOGLE_TEST, 'Test Failed.')
        self.assertEqual(shown(log), ['--- bad: Test Failed.', '[ RUN      ] Suite.Fails', 'file.cpp:12: Failure',
                                      '[  FAILED  ] Suite.Fails (2 ms)'])

    def test_the_test_that_a_program_died_in(self):
        died = '[ RUN      ] Suite.Passes\n[       OK ] Suite.Passes (1 ms)\n[ RUN      ] Suite.Dies\nERROR: it died\n'
        self.assertEqual(shown(tested('bad', died, 'Test Failed.')),
                         ['--- bad: Test Failed.', '[ RUN      ] Suite.Dies', 'ERROR: it died'])

    def test_the_last_lines_of_another_program(self):
        output = ''.join(f'line {i}\n' for i in range(100))
        self.assertEqual(shown(tested('script', output, 'Test Timeout.'), lines=2),
                         ['--- script: Test Timeout.', 'line 98', 'line 99'])

    def test_a_long_failure_keeps_its_begin_and_its_end(self):
        block = '[ RUN      ] S.Long\n' + ''.join(f'line {i}\n' for i in range(100)) + '[  FAILED  ] S.Long (1 ms)\n'
        self.assertEqual(shown(tested('bad', block, 'Test Failed.'), lines=4),
                         ['--- bad: Test Failed.', '[ RUN      ] S.Long', 'line 0', '[98 lines left out]', 'line 99',
                          '[  FAILED  ] S.Long (1 ms)'])

    def test_a_test_that_never_ended(self):
        log = tested('bad', GOOGLE_TEST, 'Test Failed.').partition('<end of output>')[0]
        self.assertEqual(shown(log)[0], '--- bad: did not end')


if __name__ == '__main__':
    unittest.main()
