"""SIGKILL of a trainer, of elixird, of the launcher: those who are left say so, soon, and go; the
machine is as before; the next job runs.

Instants are random from a seed that is printed and can be given in ELIXIR_TEST_SEED.
"""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, TINY, program, wait_until  # noqa: E402

PROMISED_S = 5  # in which the survivors have ended
ROUNDS = 6

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

    def wait_promised(self, running):
        """What has ended within the promised time from now on."""
        return running.wait(PROMISED_S)

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
        time.sleep(delay_s)
        self.assertFalse(any(trainer.ended() for trainer in trainers))
        trainers[victim].signal(signal.SIGKILL)
        survivor = self.wait_promised(trainers[1 - victim])
        self.assertEqual(trainers[victim].wait().exit_code, 137)
        self.assertEqual(survivor.exit_code, 6, str(survivor))
        self.assertIn(f'rank {victim} (pid {trainers[victim].pid}) died', survivor.errors)
        self.assertNotIn('done:', survivor.output)
        self.assertFalse(daemon.ended())
        self.assert_daemon_is_free(daemon.pid)

    def test_while_training_the_other_names_it_and_the_daemon_stays(self):
        daemon = self.start_elixird()
        self.assert_new_job_runs()
        for victim in (0, 1):
            self.kill_one_of_two(daemon, f'training-{victim}', victim, 0,
                                 lambda trainers: trainers[0].wait_for_text('^step 3/'))
        self.assert_new_job_runs()
        self.stop_elixird(daemon)
        self.assert_nothing_left()

    def test_at_random_instants_from_attach_on(self):
        daemon = self.start_elixird()
        for number in range(ROUNDS):
            victim, delay_s = self.random.randrange(2), self.random.uniform(0, 0.5)
            job = f'random-{number}'
            with self.subTest(seed=SEED, victim=victim, delay_s=delay_s):
                self.kill_one_of_two(daemon, job, victim, delay_s,
                                     lambda _: self.wait_for_attached(job, ranks=2))
        self.assert_new_job_runs()
        self.stop_elixird(daemon)
        self.assert_nothing_left()

    def test_of_three_ranks_both_others_end(self):
        daemon = self.start_elixird()
        trainers = self.start_by_hand(3, 'three')
        trainers[0].wait_for_text('^step 2/')
        trainers[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            survivor = self.wait_promised(trainers[rank])
            self.assertEqual(survivor.exit_code, 6, str(survivor))
            self.assertIn(f'rank 1 (pid {trainers[1].pid}) died', survivor.errors)
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_another_job_on_the_same_daemon_does_not_notice(self):
        daemon = self.start_elixird()
        flags = [*TINY, '--steps', '60', '--checksum']
        alone = self.succeed(program('train_gpt2'), flags)
        bystander = self.start(program('train_gpt2'), flags)
        bystander.wait_for_text('^step 1/')
        trainers = self.start_by_hand(2, 'mortal')
        trainers[0].wait_for_text('^step 1/')
        trainers[1].signal(signal.SIGKILL)
        self.assertEqual(self.wait_promised(trainers[0]).exit_code, 6)
        finished = bystander.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(finished.checksum, alone.checksum)
        self.stop_elixird(daemon)

    def test_under_the_launcher_at_random_instants(self):
        daemon = self.start_elixird()
        for number in range(ROUNDS):
            # From before the first message to elixird until well into training.
            victim, delay_s = self.random.randrange(2), self.random.uniform(0, 1.5)
            with self.subTest(seed=SEED, victim=victim, delay_s=delay_s):
                job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
                pid = wait_until(lambda: self.processes('train_gpt2', RANK=victim), 'a rank')[0]
                time.sleep(delay_s)
                os.kill(pid, signal.SIGKILL)
                finished = self.wait_promised(job)
                self.assertEqual(finished.exit_code, 137, str(finished))
                self.assertIn(f'rank {victim} (pid {pid}) was killed by SIGKILL', finished.errors)
                self.assertEqual(self.processes('train_gpt2'), [])
                self.assert_daemon_is_free(daemon.pid)
        self.assert_new_job_runs()
        self.stop_elixird(daemon)
        self.assert_nothing_left()

    def test_the_launchers_own_daemon_goes_with_it(self):
        job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
        job.wait_for_text('step 2/')
        os.kill(self.processes('train_gpt2', RANK=1)[0], signal.SIGKILL)
        self.assertEqual(self.wait_promised(job).exit_code, 137)
        self.assert_nothing_left()

    def test_with_restarts_allowed_the_job_starts_again(self):
        job = self.start(self.launch(2, program('train_gpt2'), flags=['--max-restarts', '1']), TINY,
                         '--steps', '300', '--log-every', '1')
        job.wait_for_text('step 2/')
        os.kill(self.processes('train_gpt2', RANK=1)[0], signal.SIGKILL)
        finished = job.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertIn('restart 1 of 1', finished.errors)
        self.assertIn('done:', finished.lines[-1])
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
                time.sleep(delay_s)
                daemon.signal(signal.SIGKILL)
                for trainer in trainers:
                    finished = self.wait_promised(trainer)
                    self.assertEqual(finished.exit_code, 5, str(finished))
                    self.assertRegex(finished.errors, 'train_gpt2: elixird (is gone|closed)')
                daemon.wait()
                self.assert_no_processes()
        # What it left in the folder does not disturb the next one, which leaves nothing.
        self.assert_new_job_runs()
        self.assert_nothing_left()

    def test_through_the_launcher(self):
        job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
        job.wait_for_text('step 2/')
        os.kill(self.processes('elixird')[0], signal.SIGKILL)
        finished = self.wait_promised(job)
        self.assertEqual(finished.exit_code, 5, str(finished))
        self.assertIn('elixird is gone', finished.errors)
        self.assert_no_processes()
        self.assert_no_memory()
        self.assert_new_job_runs()
        self.assert_no_sockets()

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

    def test_who_asks_for_its_status_is_told(self):
        daemon = self.start_elixird()
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        self.assertNotEqual(self.sockets(), [])  # stale
        asked = self.run_program(program('elixirctl'), 'status', limit_s=10)
        self.assertEqual(asked.exit_code, 5, str(asked))
        self.assertIn('elixird', asked.errors)

    def test_a_daemon_that_a_trainer_started(self):
        trainer = self.start(program('train_gpt2'), TINY, ENDLESS)
        trainer.wait_for_text('^step 2/')
        os.kill(self.processes('elixird')[0], signal.SIGKILL)
        finished = self.wait_promised(trainer)
        self.assertEqual(finished.exit_code, 5, str(finished))
        self.assertIn('elixird is gone', finished.errors)
        self.assert_no_processes()
        self.assert_no_memory()


class KillLauncher(Kill):
    def test_trainers_and_its_daemon_go(self):
        for delay_s in (0, self.random.uniform(0, 1)):
            with self.subTest(seed=SEED, delay_s=delay_s):
                job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
                wait_until(lambda: len(self.processes('train_gpt2')) == 2, 'two ranks')
                time.sleep(delay_s)
                job.signal(signal.SIGKILL)
                self.assert_no_processes(PROMISED_S)
                self.assert_no_sockets()
        self.assert_no_memory()
        self.assert_new_job_runs()

    def test_an_adopted_daemon_stays(self):
        daemon = self.start_elixird()
        job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS)
        job.wait_for_text('step 2/')
        job.signal(signal.SIGKILL)
        wait_until(lambda: not self.processes('train_gpt2'), 'the end of the ranks', PROMISED_S)
        self.assert_daemon_is_free(daemon.pid)
        self.assert_new_job_runs()
        self.stop_elixird(daemon)


if __name__ == '__main__':
    print(f'ELIXIR_TEST_SEED={SEED}', flush=True)
    harness.main()
