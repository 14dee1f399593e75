"""bitsandbytes, torchvision, TorchScript, torch.func and autocast on tensors in chunks, with the libraries loaded
before Elixir and after it. Runs in the environment of scripts/foreign_setup.sh (of scripts/newest_setup.sh: for the
newest torch); skipped where that was not run."""

import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
PYTHON = os.environ['ELIXIR_FOREIGN_PYTHON']
CHUNKS = os.environ['ELIXIR_CHUNKS_IN_PYTHON']
CASES = 13
SKIPPED = 77


class ForeignLibraries(unittest.TestCase):
    def run_cases(self, order):
        finished = subprocess.run([PYTHON, '-B', os.path.join(HERE, 'foreign_libraries.py'), CHUNKS, order],
                                  capture_output=True, text=True, check=False, timeout=240)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        return dict(re.findall(r'^(.+): kernels=(\S+) gathered=\d+$', finished.stdout, re.M))

    def test_the_kernels_are_those_of_ordinary_tensors(self):
        before, after = self.run_cases('before'), self.run_cases('after')
        self.assertEqual(len(before), CASES)
        self.assertEqual(before, after)
        # Both kinds of kernel were asked for, so that a wrong choice would be seen.
        kinds = set(','.join(before.values()).split(','))
        self.assertTrue({'cpu/ops.py', 'default/ops.py', 'compiled'} <= kinds, kinds)
        self.assertEqual(before['blockwise'], 'cpu/ops.py')  # whose operators have a default kernel, too


if __name__ == '__main__':
    if not os.path.exists(PYTHON):
        print(f'skipped: {os.path.dirname(PYTHON)} is not there: scripts/foreign_setup.sh or newest_setup.sh has not run')
        sys.exit(SKIPPED)
    sys.exit(unittest.main())
