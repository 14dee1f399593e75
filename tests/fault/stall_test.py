"""A process that stands still is not dead: the others wait for it, and the weights are the same."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import TINY, program, wait_until  # noqa: E402

STALL_S = 1.5
FLAGS = [*TINY, '--steps', '300', '--log-every', '1', '--checksum']


class Stall(harness.ElixirTest):
    def undisturbed(self):
        return self.succeed(self.launch(2, program('train_gpt2')), FLAGS).checksum

    def stall(self, job, pid):
        job.wait_for_text('step 2/')
        harness.stop(pid)
        # The others wait: a step needs every rank, and elixird.
        harness.wait_for_rest(job, STALL_S)
        self.assertFalse(job.ended())

    def test_a_rank(self):
        expected = self.undisturbed()
        job = self.start(self.launch(2, program('train_gpt2')), FLAGS)
        pid = wait_until(lambda: self.processes('train_gpt2', RANK=1), 'rank 1')[0]
        self.stall(job, pid)
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(job.wait().checksum, expected)
        self.assert_nothing_left()

    def test_elixird(self):
        expected = self.undisturbed()
        job = self.start(self.launch(2, program('train_gpt2')), FLAGS)
        pid = wait_until(lambda: self.processes('elixird'), 'elixird')[0]
        self.stall(job, pid)
        # Who asks it meanwhile is told so, in time.
        asked = self.run_program(program('elixirctl'), 'status', limit_s=10)
        self.assertEqual(asked.exit_code, 5, str(asked))
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(job.wait().checksum, expected)
        self.assert_nothing_left()


if __name__ == '__main__':
    harness.main()
