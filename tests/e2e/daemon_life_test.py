"""Trainers find elixird or start one; one serves them all; it goes when nobody needs it."""

import signal

import harness
from harness import ENDLESS, TINY, program, wait_until


class DaemonLife(harness.ElixirTest):
    def test_a_lone_trainer_starts_one_which_goes_by_itself(self):
        self.assertEqual(self.sockets(), [])
        self.succeed(program('train_gpt2'), TINY, '--steps', '2')
        daemons = self.processes('elixird')
        self.assertEqual(len(daemons), 1)
        self.assertEqual(self.status()['jobs'], [])

        # While it waits, the next trainer is served by it.
        self.succeed(program('train_gpt2'), TINY, '--steps', '2')
        self.assertEqual(self.processes('elixird'), daemons)
        self.assert_no_processes(limit_s=30)
        self.assert_nothing_left()

    def test_two_trainers_started_at_once_share_one(self):
        trainers = [self.start(program('train_gpt2'), TINY, ENDLESS) for _ in range(2)]
        for trainer in trainers:
            trainer.wait_for_text('^step 1/')
        self.assertEqual(len(self.processes('elixird')), 1)
        entries = self.status()['jobs']
        self.assertEqual(sorted(entry['pids'] for entry in entries),
                         sorted([trainer.pid] for trainer in trainers))
        for trainer in trainers:
            trainer.signal(signal.SIGTERM)
            self.assertEqual(trainer.wait().exit_code, 143)
        wait_until(lambda: not self.status()['jobs'], 'no job')
        self.stop_idle_elixird()

    def test_the_launcher_adopts_one_that_runs_and_leaves_it(self):
        daemon = self.start_elixird()
        self.succeed(self.launch(2, program('train_gpt2')), TINY, '--steps', '2')
        self.assertFalse(daemon.ended())
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_two_launches_at_once_share_one_and_both_finish(self):
        command = self.launch(2, program('train_gpt2')) + TINY + ['--steps', '20', '--checksum']
        first, second = (self.start(command) for _ in range(2))
        first, second = first.wait(), second.wait()
        for finished in (first, second):
            self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(first.checksum, second.checksum)
        self.assertEqual(self.log().count('event=listening'), 1)
        self.assert_nothing_left()

    def test_a_trainer_that_comes_the_moment_elixird_would_go_is_served(self):
        daemon = self.start_elixird('--exit-when-idle', '1')
        daemon.signal(signal.SIGSTOP)
        trainer = self.start(program('train_gpt2'), TINY, '--steps', '2')
        trainer.wait_for_text('event=waiting')  # longer than the daemon's second
        self.assertFalse(daemon.ended())
        daemon.signal(signal.SIGCONT)
        finished = trainer.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(daemon.wait().exit_code, 0)
        self.assert_no_sockets()

    def test_a_folder_that_was_used_is_used_again(self):
        for _ in range(3):
            self.succeed(self.launch(1, program('train_gpt2')), TINY, '--steps', '1')
            self.assert_no_sockets()


if __name__ == '__main__':
    harness.main()
