"""A run whose every process is killed, again and again, ends with the bits of one that was not."""

import os
import random
import signal
import time

import harness
from checkpoint_run import DROPOUT, TRAIN, step_names, whole_step_names
from harness import NIGHTLY, TINY, program, wait_until

class Killed(harness.ElixirTest):
    """All processes but the launcher are killed at random instants; it starts them again."""

    # A processor without AVX-512 takes 0.6 s for a step in BF16.
    FLAGS = [TINY, DROPOUT, '--dtype', 'bf16' if NIGHTLY else 'fp32', '--steps', '200', '--checksum', '--log-every', '1']

    def kill_everything(self):
        for name in ('elixird', 'elixir-train'):
            for pid in self.processes(name):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def elixird_answers(self):
        return self.run_program(program('elixirctl'), 'status').exit_code == 0

    def killed_run(self, chosen, number, most_kills):
        """A run that is killed until it ends, or so often; its outcome, and the number of kills."""
        checkpoints = os.path.join(self.folder, f'checkpoints-{number}')
        running = self.start(self.launch(2, TRAIN, flags=['--max-restarts', '1000']), self.FLAGS, '--checkpoints',
                             checkpoints, '--save-every', '10', '--resume', 'latest')
        kills = 0
        while kills < most_kills:
            # Sometimes in the start, sometimes in the midst. Every second kill comes once there is a whole
            # checkpoint, so that the run resumes from one, and gets to its end.
            if kills % 2 == 0:
                # cannot fail by chance: every instant is right.
                time.sleep(chosen.uniform(0.2, 4))
            else:
                wait_until(lambda: running.ended() or whole_step_names(checkpoints), 'a checkpoint')
            # An elixird that dies before it listens ends the run: the launcher calls it unable to start.
            wait_until(lambda: running.ended() or self.elixird_answers(), 'elixird')
            if running.ended():
                break
            self.kill_everything()
            kills += 1
        finished = running.wait(600)
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertLessEqual(len(step_names(checkpoints)), 3)
        return finished, kills

    def test_the_bits_are_those_of_the_undisturbed_run(self):
        left = 50 if NIGHTLY else 4
        undisturbed = self.succeed(self.launch(2, TRAIN), self.FLAGS, limit_s=240)
        self.assertNotIn('continuing from', undisturbed.output)
        seed = random.randrange(1 << 30)
        print(f'seed {seed}')
        chosen = random.Random(seed)
        runs, resumed = 0, 0
        while left > 0:
            finished, kills = self.killed_run(chosen, runs, left)
            self.assertEqual(finished.checksum, undisturbed.checksum, f'seed {seed}\n{finished}')
            resumed += finished.output.count('continuing from')
            left -= kills
            runs += 1
        self.assertGreater(resumed, 0)


if __name__ == '__main__':
    harness.main()
