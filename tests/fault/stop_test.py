"""SIGTERM and SIGINT: to the launcher, to a trainer, to elixird."""

import fcntl
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, TINY, is_pending, program, steps_told, wait_until  # noqa: E402


class Stop(harness.ElixirTest):
    def test_the_launcher_ends_its_ranks_and_its_daemon(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                job = self.start(self.launch(2, program('train_gpt2'), flags=['--grace', str(harness.PATIENCE_S)]),
                                 TINY, ENDLESS)
                job.wait_for_text('step 2/')
                job.signal(number)
                finished = job.wait()
                self.assertEqual(finished.exit_code, 128 + number, str(finished))
                # The ranks ended by themselves.
                self.assertRegex(finished.lines[-1], r'^\[rank 0\] stopped: step \d+ of 1000000, nothing was saved')
                self.assertNotIn('SIGKILL', finished.errors)
                self.assertNotIn('train_gpt2: ', finished.errors)
                self.assert_nothing_left()

    def test_a_trainer_finishes_its_step_and_says_what_was_saved(self):
        daemon = self.start_elixird()
        trainer = self.start(program('train_gpt2'), TINY, ENDLESS)
        trainer.wait_for_text('^step 2/')
        trainer.signal(signal.SIGTERM)
        finished = trainer.wait()
        self.assertEqual(finished.exit_code, 143, str(finished))
        self.assertRegex(finished.lines[-1], r'^stopped: step \d+ of 1000000, nothing was saved: give --checkpoints')
        self.assert_daemon_is_free(daemon.pid)
        # It said goodbye; an end-of-file alone would be a death.
        self.assertIn('event=detach', self.log())
        self.assertNotIn('event=lost', self.log())
        self.stop_elixird(daemon)

    def test_a_rank_that_misses_another_one_after_the_signal_was_stopped(self):
        daemon = self.start_elixird()
        ranks = [self.start(program('train_gpt2'), TINY, ENDLESS, environment=self.rank_environment(rank, 2))
                 for rank in range(2)]
        ranks[0].wait_for_text('^step 2/')
        harness.stop(ranks[1].pid)
        looks = []

        def stands_still():
            looks.append(steps_told(ranks[0]))
            return looks[-20:].count(looks[-1]) == 20
        # Most likely it waits for the other one's step by now, in which it will miss that one.
        wait_until(stands_still, 'no more steps')
        ranks[0].signal(signal.SIGTERM)
        wait_until(lambda: not is_pending(ranks[0].pid, signal.SIGTERM), 'it is taken')
        ranks[1].signal(signal.SIGKILL)
        ranks[1].wait()
        finished = ranks[0].wait()
        self.assertEqual(finished.exit_code, 143, str(finished))
        made = re.findall(r'(?m)^step (\d+)/', finished.output)[-1]
        self.assertRegex(finished.lines[-1], rf'^stopped: step {made} of 1000000, nothing was saved: give --checkpoints')
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_a_rank_that_waits_for_others_ends_at_once(self):
        daemon = self.start_elixird()
        for number in (signal.SIGTERM, signal.SIGINT):
            rank = self.start(program('train_gpt2'), TINY, ENDLESS,
                              environment=self.rank_environment(0, 2))
            rank.wait_for_text('waiting')
            rank.signal(number)
            self.assertEqual(rank.wait().exit_code, 128 + number)
            self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_a_trainer_that_comes_while_the_last_elixird_is_leaving(self):
        # One that finishes a long step holds the lock of the folder and listens no more.
        with open(os.path.join(self.runtime, 'elixird.lock'), 'w', encoding='ascii') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            trainer = self.start(program('train_gpt2'), TINY, '--steps', '2')
            def refused():
                return self.log().count('another elixird')
            first = wait_until(refused, 'its elixird is refused')
            wait_until(lambda: refused() > first, 'the next one is, too')
            self.assertFalse(trainer.ended())
        finished = trainer.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.stop_idle_elixird()

    def test_elixird_of_the_launcher_stopped_by_somebody(self):
        job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
        job.wait_for_text('step 2/')
        os.kill(self.processes('elixird')[0], signal.SIGTERM)
        finished = job.wait()
        self.assertEqual(finished.exit_code, 5, str(finished))
        self.assertIn('elixird was stopped', finished.errors)
        self.assert_nothing_left()


if __name__ == '__main__':
    harness.main()
