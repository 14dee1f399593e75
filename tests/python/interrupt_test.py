"""Ctrl-C while another rank is missing: every call that waits ends with KeyboardInterrupt, leaves an optimizer that
says what can be done, and an interpreter that ends."""

import json
import unittest

import python_case
from python_case import TIMING, PythonCase

python_case.need('numpy', 'safetensors')

ENDS = {'load': 'load()', 'set_parameters': 'set_parameter()', 'release': 'release()'}


class Interrupt(PythonCase):
    def test_every_wait_ends(self):
        lines = self.warm_lines('interrupt_program.py')
        longest = 0
        for line in lines:
            with self.subTest(line['case']):
                call, code, output = line['case'], line['codes'][0], line['output']
                if call == 'uncaught':
                    self.assertEqual(code, -2, output)  # as every program of Python's that Ctrl-C ends
                    self.assertIn('KeyboardInterrupt', output)
                    continue
                self.assertEqual(code, 0, output)
                (said,) = [text for text in output.splitlines() if text.startswith('told ')]
                told = json.loads(said[len('told '):])
                self.assertNotIn(None, told['seconds'], output)
                longest = max(longest, *told['seconds'])
                if call in ENDS:
                    self.assertIn('was interrupted', told['error'])
                    self.assertIn(ENDS[call], told['error'])
                if call == 'backward':
                    self.assertIn('zero_grad()', told['error'])
        print(f'from Ctrl-C to KeyboardInterrupt: {longest * 1e3:.0f} ms at most, of {len(lines)} calls')
        if TIMING:
            self.assertLess(longest, 1)
        self.await_no_jobs()


if __name__ == '__main__':
    unittest.main()
