"""The examples: a module that knows nothing of Elixir, alone and with two ranks; FP16; planned; saved."""

import math
import os
import re
import shutil
import tempfile

import harness


class Examples(harness.ElixirTest):
    YOUR_MODEL = os.path.join(harness.EXAMPLES, 'your_model')

    def losses(self, output):
        return [float(loss) for loss in re.findall(r'step \d+ loss ([0-9.]+)', output)]

    def assert_learns(self, losses):
        """Of steps 0, 50, 100 and 150. The variance of the target, 0.43, is the loss of a constant answer."""
        self.assertEqual(len(losses), 4)
        self.assertGreater(losses[0], 0.4)
        self.assertLess(losses[-1], 0.15)

    def test_alone(self):
        finished = self.succeed(self.YOUR_MODEL, limit_s=120)
        self.assert_learns(self.losses(finished.output))
        # What the program prints last is a parameter: an uninitialised one would be 0 or nan.
        printed = re.search(r'bias of the last layer([^\[]*)', finished.output).group(1)
        bias = float(printed.split()[-1])
        self.assertNotEqual(bias, 0)
        self.assertEqual(bias, bias)
        self.stop_idle_elixird()

    def test_two_ranks(self):
        finished = self.succeed(self.launch(2, self.YOUR_MODEL), limit_s=120)
        for rank in (0, 1):
            lines = [line for line in finished.lines if line.startswith(f'[rank {rank}] ')]
            self.assert_learns(self.losses('\n'.join(lines)))
        self.assert_nothing_left()

    def test_mixed_precision(self):
        finished = self.succeed(os.path.join(harness.EXAMPLES, 'mixed_precision'), limit_s=120)
        rows = re.findall(r'step (\d+) loss (\S+) norm (\S+) scale (\S+)', finished.output)
        self.assertEqual([int(row[0]) for row in rows], [1, 11, 21, 31, 41], str(finished))
        losses = [float(row[1]) for row in rows]
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertTrue(all(float(row[2]) > 0 for row in rows))
        skipped = int(re.search(r'skipped (\d+)', finished.output).group(1))
        # The scale says how often: it halves with each, and is too young to grow.
        halvings = math.log2(4096 / float(rows[-1][3]))
        self.assertIn(halvings, range(skipped + 1))
        self.stop_idle_elixird()

    def test_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            run = [os.path.join(harness.EXAMPLES, 'checkpoints'), folder]
            self.assertIn('begins after step 0', self.succeed(run, limit_s=120).output)
            kept = sorted(os.listdir(folder))
            self.assertEqual([name for name in kept if name.startswith('step-')],
                             ['step-000000040', 'step-000000050'])
            shutil.rmtree(os.path.join(folder, 'step-000000050'))
            resumed = self.succeed(run, limit_s=120).output
            self.assertIn('begins after step 40', resumed)
            self.assertIn('step-000000050: ', resumed)
        self.stop_idle_elixird()

    def test_planned_model(self):
        finished = self.succeed(os.path.join(harness.EXAMPLES, 'planned_model'), limit_s=120)
        loss, predicted = re.search(r'loss (\S+), planned for (\S+) ms a step', finished.output).groups()
        self.assertGreater(float(predicted), 0, str(finished))
        self.assertLess(float(loss), 0.3, 'a constant answer has 0.43')
        self.stop_idle_elixird()


if __name__ == '__main__':
    harness.main()
