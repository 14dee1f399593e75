"""SIGKILL of a trainer and of elixird: those who are left say so and go; the machine is as
before; the next job runs. (Of the launcher: elixir_run_test.)

Instants are random from a seed that is printed and can be given in ELIXIR_TEST_SEED.
"""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, NIGHTLY, TINY, program, wait_until  # noqa: E402

ROUNDS = 6 if NIGHTLY else 3

SEED = int(os.environ.get('ELIXIR_TEST_SEED', random.SystemRandom().randrange(1 << 31)))


class Kill(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(f'{SEED} {self.id()}')

    def start_by_hand(self, ranks, job):
        return [self.start(program('train_gpt2'), TINY, ENDLESS,
                           environment=self.rank_environment(rank, ranks, job))
                for rank in range(ranks)]

    def wait_for_attached(self, job, ranks):
        wait_until(lambda: self.log().count(f"event=attach job='{job}'") == ranks,
                   f'{ranks} ranks of {job} attached')

    def assert_new_job_runs(self):
        """And it computes what it would on a machine where nothing has happened."""
        finished = self.succeed(self.launch(2, program('train_gpt2')), TINY, '--steps', '3',
                                '--checksum')
        if not hasattr(Kill, 'undisturbed'):
            Kill.undisturbed = finished.checksum
        self.assertEqual(finished.checksum, Kill.undisturbed)


class KillTrainer(Kill):
    def kill_one_of_two(self, daemon, job, victim, delay_s, ready):
        trainers = self.start_by_hand(2, job)
        ready(trainers)
        time.sleep(delay_s)  # cannot fail by chance: from attach on every instant is right
        self.assertFalse(any(trainer.ended() for trainer in trainers))
        trainers[victim].signal(signal.SIGKILL)
        survivor = trainers[1 - victim].wait()
        self.assertEqual(trainers[victim].wait().exit_code, 137)
        self.assertEqual(survivor.exit_code, 6, str(survivor))
        self.assertIn(f'rank {victim} (pid {trainers[victim].pid}) died', survivor.errors)
        self.assertNotIn('done:', survivor.output)
        self.assertFalse(daemon.ended())
        self.assert_daemon_is_free(daemon.pid)

    def test_from_attach_on_the_other_names_it_and_the_daemon_stays(self):
        daemon = self.start_elixird()
        self.kill_one_of_two(daemon, 'training', 0, 0,
                             lambda trainers: trainers[0].wait_for_text('^step 3/'))
        for number in range(ROUNDS):
            victim, delay_s = self.random.randrange(2), self.random.uniform(0, 0.5)
            job = f'random-{number}'
            with self.subTest(seed=SEED, victim=victim, delay_s=delay_s):
                self.kill_one_of_two(daemon, job, victim, delay_s,
                                     lambda _: self.wait_for_attached(job, ranks=2))
        self.assert_new_job_runs()
        self.stop_elixird(daemon)
        self.assert_nothing_left()

    def test_under_the_launcher_at_random_instants(self):
        daemon = self.start_elixird()
        for number in range(ROUNDS):
            # From before the first message to elixird until well into training.
            victim, delay_s = self.random.randrange(2), self.random.uniform(0, 1.5)
            with self.subTest(seed=SEED, victim=victim, delay_s=delay_s):
                job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
                pid = wait_until(lambda: self.processes('train_gpt2', RANK=victim), 'a rank')[0]
                time.sleep(delay_s)  # cannot fail by chance: every instant is right
                os.kill(pid, signal.SIGKILL)
                finished = job.wait()
                self.assertEqual(finished.exit_code, 137, str(finished))
                self.assertIn(f'rank {victim} (pid {pid}) was killed by SIGKILL', finished.errors)
                self.assertEqual(self.processes('train_gpt2'), [])
                self.assert_daemon_is_free(daemon.pid)
        self.assert_new_job_runs()
        self.stop_elixird(daemon)
        self.assert_nothing_left()


class KillElixird(Kill):
    def test_trainers_end_with_a_clear_error(self):
        for number in range(ROUNDS):
            delay_s = self.random.uniform(0, 0.5) if number else 0.5
            with self.subTest(seed=SEED, delay_s=delay_s):
                daemon = self.start_elixird()
                job = f'orphan-{number}'
                trainers = self.start_by_hand(2, job)
                # Both have found this one: a trainer that comes later would start another.
                self.wait_for_attached(job, ranks=2)
                time.sleep(delay_s)  # cannot fail by chance: from attach on every instant is right
                daemon.signal(signal.SIGKILL)
                for trainer in trainers:
                    finished = trainer.wait()
                    self.assertEqual(finished.exit_code, 5, str(finished))
                    self.assertRegex(finished.errors, 'train_gpt2: elixird (is gone|closed)')
                daemon.wait()
                self.assert_no_processes()
        # What it left in the folder does not disturb the next one, which leaves nothing.
        self.assert_new_job_runs()
        self.assert_nothing_left()

    def test_with_restarts_allowed_the_launcher_starts_another(self):
        job = self.start(self.launch(2, program('train_gpt2'), flags=['--max-restarts', '1']), TINY,
                         '--steps', '300', '--log-every', '1')
        job.wait_for_text('step 2/')
        os.kill(self.processes('elixird')[0], signal.SIGKILL)
        finished = job.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertIn('restart 1 of 1', finished.errors)
        self.assertIn('done:', finished.lines[-1])
        self.assert_nothing_left()


if __name__ == '__main__':
    print(f'ELIXIR_TEST_SEED={SEED}', flush=True)
    harness.main()
