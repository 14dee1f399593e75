"""A trainer that finds no elixird starts one, which goes when nobody needs it. (Of several that start at
once, and of the launcher: shm_test FindDaemonTest and elixir_run_test.)"""

import datetime
import re
import signal

import harness
from harness import ENDLESS, TINY, program, wait_until


class DaemonLife(harness.ElixirTest):
    def test_a_lone_trainer_starts_one_which_goes_by_itself(self):
        self.assertEqual(self.sockets(), [])
        first = self.start(program('train_gpt2'), TINY, ENDLESS)
        first.wait_for_text('step 1/')
        daemons = self.processes('elixird')
        self.assertEqual(len(daemons), 1)
        held = self.hold_elixird(self.runtime)
        first.signal(signal.SIGTERM)
        first.wait()
        wait_until(lambda: not self.status()['jobs'], 'the end of the job')

        # While it waits, the next trainer is served by it.
        self.succeed(program('train_gpt2'), TINY, '--steps', '2')
        self.assertEqual(self.processes('elixird'), daemons)
        held.close()
        self.assert_no_processes(limit_s=30)
        self.assert_nothing_left()

    def test_idle_time_counts_from_when_it_listens(self):
        """A start that takes longer than --exit-when-idle used to end at once."""
        daemon = self.start(program('elixird'), '--exit-when-idle', '0.2')
        log = daemon.wait(120).errors
        started_s = float(re.search(r'event=listening .* started_in_s=([\d.]+)', log).group(1))
        self.assertGreater(started_s, 0.2, 'the bandwidth probe is that slow')
        listening, idle = (datetime.datetime.fromisoformat(
            re.search(rf'(?m)^(\S+)Z info elixird event={event} ', log).group(1)) for event in ('listening', 'idle'))
        self.assertGreaterEqual((idle - listening).total_seconds(), 0.2)

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


if __name__ == '__main__':
    harness.main()
