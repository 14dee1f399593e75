"""SIGKILL of a rank whose job exchanges by collectives: the others say who died, soon, and go."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, TINY, program  # noqa: E402

PROMISED_S = 30
PEER_LOST = 6


class CollectiveDeath(harness.ElixirTest):
    def start_ranks(self, ranks, job):
        trainers = []
        port = harness.free_port()
        for rank in range(ranks):
            environment = self.rank_environment(rank, ranks, job)
            environment.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
            trainers.append(self.start(program('train_gpt2'), TINY, ENDLESS, '--exchange',
                                       'collective', environment=environment))
        trainers[0].wait_for_text(r'step +2/')
        return trainers

    def test_the_others_name_the_rank_that_died(self):
        daemon = self.start_elixird()
        for victim in (0, 1, 2):
            with self.subTest(victim=victim):
                trainers = self.start_ranks(3, f'collective-{victim}')
                trainers[victim].signal(signal.SIGKILL)
                for rank, trainer in enumerate(trainers):
                    if rank == victim:
                        continue
                    survivor = trainer.wait(PROMISED_S)
                    self.assertEqual(survivor.exit_code, PEER_LOST, str(survivor))
                    self.assertRegex(survivor.errors,
                                     rf'rank {victim} .*pid {trainers[victim].pid}')
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_a_rank_that_stands_still_is_not_dead(self):
        daemon = self.start_elixird()
        trainers = self.start_ranks(2, 'stalled')
        harness.stop(trainers[1].pid)
        harness.wait_for_rest(trainers[0], 3)
        self.assertFalse(any(trainer.ended() for trainer in trainers))
        trainers[1].signal(signal.SIGCONT)
        seen = len(trainers[0].output)
        harness.wait_until(lambda: len(trainers[0].output) > seen, 'another step')
        for trainer in trainers:
            trainer.signal(signal.SIGTERM)
        for trainer in trainers:
            trainer.wait()
        self.stop_elixird(daemon)


if __name__ == '__main__':
    harness.main()
