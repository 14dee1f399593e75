"""examples/python, as a user runs them."""

import os
import re
import subprocess
import sys
import unittest

import python_case
from python_case import PythonCase

python_case.need('transformers', 'peft')

EXAMPLES = os.path.join(python_case.HERE, '..', '..', 'examples', 'python')


class Examples(PythonCase):
    def run_example(self, name, *args):
        finished = subprocess.run(
            [sys.executable, '-B', os.path.join(EXAMPLES, name), *args], capture_output=True, text=True, check=False,
            env={**os.environ, 'PYTHONPATH': os.path.join(python_case.BUILD, 'python')}, cwd=self.folder)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        return finished.stdout

    def test_finetune_has_the_losses_of_torch(self):
        ours, theirs = self.run_example('finetune.py'), self.run_example('finetune.py', '--torch')
        losses = [[float(loss) for loss in re.search('losses: (.*)', text).group(1).split()] for text in (ours, theirs)]
        self.assertEqual(len(losses[0]), 4)
        for a, b in zip(*losses):
            self.assertAlmostEqual(a, b, delta=1e-3 * b)
        self.assertLess(losses[0][-1], 0.2 * losses[0][0])
        self.assertIn('says: elixir keeps the states', ours)

    def test_plain_loop(self):
        output = self.run_example('plain_loop.py')
        self.assertIn('resumed at step 30', output)
        self.assertEqual(len(re.findall(r'^step .* norm [0-9.]+$', output, re.M)), 3)

    def test_lora(self):
        losses = [float(loss) for loss in re.findall('loss ([0-9.]+)', self.run_example('lora.py'))]
        self.assertLess(losses[-1], losses[0])

    def test_resume(self):
        self.assertIn('equal to the bit: True', self.run_example('resume.py'))


if __name__ == '__main__':
    unittest.main()
