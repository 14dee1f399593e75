"""The collective exchange on two devices: LibTorch's NCCL backend over the fake NCCL."""

import signal

import fake_gpu
import harness
from fake_gpu import NIGHTLY, TINY
from harness import ENDLESS, program

PEER_LOST, PROTOCOL, TIMED_OUT, INTERNAL = 6, 9, 10, 70
SYSTEM_ERROR = 'ncclSystemError'


class Exchange(fake_gpu.FakeGpuTest):
    def train_two(self, *flags, **how):
        finished = self.train('--exchange', 'collective', '--steps', '3', flags, ranks=2, DEVICES=2,
                              **how)
        self.assert_sound(finished)
        return finished

    def check(self, finished):
        # Each rank's threads have kept to its own device.
        self.assertEqual(sorted(report.contexts() for report in finished.reports), [[0], [1]])
        for report in finished.reports:
            self.assertGreater(report.counts('nccl all-gather'), 0)
            self.assertGreater(report.counts('nccl reduce-scatter'), 0)
        self.assertNotRegex(finished.errors, r'\[[WEF]\d+ |Warning|ProcessGroupNCCL')

    # (Every type, mode and share: fakegpu_matrix_2_collective_*.)
    def test_each_rank_keeps_to_its_device_at_any_speed(self):
        for flags, settings in ((['--dtype', 'bf16'], {}),
                                (['--clip-norm', '1', '--gpu-state-share', '0.5'],
                                 {'DELAY_US': 300, 'SEED': 2})):
            with self.subTest(flags=flags):
                self.check(self.train_two(flags, **settings))


class Overlap(fake_gpu.FakeGpuTest):
    """By the device's own clock, which is virtual."""

    LAYERS = 12
    # A chunk a layer; a reduce-scatter and an all-gather take as long as a layer's backward.
    FLAGS = ['--exchange', 'collective', '--dtype', 'bf16', '--update', 'deferred', '--layers', str(LAYERS),
             '--chunk-numel', '800000', '--rcache-blocks', '3']
    SETTINGS = {'DEVICES': 2, 'KERNEL_US': 100, 'CALL_US': 0, 'FAKE_NCCL_GB_S': 0.72}

    def test_collectives_of_backward_run_beside_its_operators(self):
        short, long = (self.train(self.FLAGS, '--steps', steps, ranks=2, **self.SETTINGS).reports[0]
                       for steps in (3, 6))
        counted = [f'nccl {name}' for name in ('all-gather', 'reduce-scatter')]
        collectives = sum(long.counts(name) - short.counts(name) for name in counted)
        compute_ns = sum(sum(stream['busy_ns'].values()) * sign for report, sign in ((long, 1), (short, -1))
                         for stream in report['streams'] if stream['default'])
        one_ns = (long.busy_ns('other') - short.busy_ns('other')) / collectives
        backward_ns = 2 / 3 * compute_ns
        # What the figure is about: two collectives a chunk fill backward.
        self.assertGreater(2 * one_ns * 3 * (self.LAYERS + 1), 0.95 * backward_ns)
        exposed_ns = long.end_ns() - short.end_ns() - compute_ns
        self.assertLess(exposed_ns, 0.15 * backward_ns + 3 * one_ns)  # three steps


class Failure(fake_gpu.FakeGpuTest):
    def start_ranks(self, own_flags=lambda rank: [], **settings):
        """With what torchrun sets for every program: torch's own handling of errors, which ends a
        process at once."""
        environment = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(harness.free_port()),
                       'FAKE_CUDA_DEVICES': '2', 'TORCH_NCCL_ASYNC_ERROR_HANDLING': '1'}
        environment.update((name, str(value)) for name, value in settings.items())
        job = f'nccl-{len(self.started)}'
        return [self.start(program('train_gpt2'), TINY, ENDLESS, '--exchange', 'collective', own_flags(rank),
                           environment={**environment, **self.rank_environment(rank, 2, job)})
                for rank in range(2)]

    def ended(self, trainer, exit_code):
        finished = trainer.wait()
        self.assertEqual(finished.exit_code, exit_code, str(finished))
        return finished

    def inject(self, victim, **settings):
        """An error in the 40th collective of a rank: some steps on, whatever the plan. Returns what
        that rank and the other left."""
        trainers = self.start_ranks(FAKE_NCCL_ERROR_RANK=victim, FAKE_NCCL_ERROR_AT=40, **settings)
        trainers[victim].wait_for_text('an error was injected')
        failed = self.ended(trainers[victim], INTERNAL)
        other = self.ended(trainers[1 - victim], PEER_LOST)
        self.assertRegex(other.errors, rf'rank {victim} \(pid {trainers[victim].pid} .*failed: ')
        return failed, other

    def test_a_killed_rank_is_named(self):
        daemon = self.start_elixird()
        for kill in range(50 if NIGHTLY else 2):
            victim = kill % 2
            with self.subTest(kill=kill):
                trainers = self.start_ranks()
                trainers[0].wait_for_text(rf'step +{2 + kill // 2}/')
                trainers[victim].signal(signal.SIGKILL)
                other = self.ended(trainers[1 - victim], PEER_LOST)
                self.assertRegex(other.errors, rf'rank {victim} .*pid {trainers[victim].pid}')
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)

    def test_the_status_names_the_rank_that_devices_wait_for(self):
        daemon = self.start_elixird()
        trainers = self.start_ranks()
        trainers[0].wait_for_text('step +3/')
        harness.stop(trainers[1].pid)

        def waiting():
            return [wait for job in self.status()['jobs'] for wait in job['waiting'] if wait['rank'] == 0]

        # Stopped between its last collective of a step and its post, it is the post that is missing.
        told, = harness.wait_until(waiting, 'rank 0 waits')
        self.assertRegex(told['for'], r'^(rank 1 in a collective|step \d+ of rank 1)$')
        for trainer in trainers:
            trainer.signal(signal.SIGKILL)
            trainer.wait()
        self.stop_elixird(daemon)

    def test_an_error_in_a_collective_is_named_on_all_ranks(self):
        daemon = self.start_elixird()
        for victim, tells_peers in ((0, 1), (1, 0)):
            with self.subTest(victim=victim, tells_peers=tells_peers):
                for finished in self.inject(victim, FAKE_NCCL_TELLS_PEERS=tells_peers):
                    self.assertIn(SYSTEM_ERROR, finished.errors)
        self.stop_elixird(daemon)

    def test_ranks_that_differ_by_one_gather_are_named(self):
        """With one block less a rank gathers one chunk more in each step."""
        daemon = self.start_elixird()
        trainers = self.start_ranks(lambda rank: ['--chunk-numel', '524288', '--rcache-blocks', str(3 - rank)],
                                    FAKE_NCCL_MISMATCHES_HANG=1)
        for trainer in trainers:
            errors = self.ended(trainer, PROTOCOL).errors
            for rank, one in enumerate(trainers):
                self.assertRegex(errors, rf'rank {rank} \(pid {one.pid} .*(of their devices|on its device)')
        self.stop_elixird(daemon)

    def test_an_error_of_the_call_is_named_on_all_ranks(self):
        daemon = self.start_elixird()
        trainers = self.start_ranks(FAKE_NCCL_ERROR_RANK=1, FAKE_NCCL_ERROR_AT=40,
                                    FAKE_NCCL_ERROR_AT_CALL=1)
        self.ended(trainers[1], INTERNAL)
        self.assertRegex(self.ended(trainers[0], PEER_LOST).errors, r'rank 1 \(pid .*failed: ')
        self.stop_elixird(daemon)

    def test_devices_that_fail_on_all_ranks_end_them_in_order(self):
        """NCCL's abort fails then, too, in the thread that watches the peers."""
        for after in (130, 250, 330, 418):
            with self.subTest(after=after):
                finished = self.train('--exchange', 'collective', '--steps', '5', '--dtype', 'bf16',
                                      ranks=2, DEVICES=2, FAIL_AFTER=after, FAIL_ERROR=719,
                                      exit_code=None)
                self.assertEqual(finished.exit_code, INTERNAL, str(finished))

    # The same failure, of which NCCL says nothing: shows that the tests above end since NCCL is
    # asked, and for no other reason.
    def test_a_collective_that_hangs_without_an_error_is_waited_for_as_long_as_allowed(self):
        daemon = self.start_elixird()
        trainers = self.start_ranks(FAKE_NCCL_ERROR_RANK=1, FAKE_NCCL_ERROR_AT=40,
                                    FAKE_NCCL_ERROR_RESULT=0, ELIXIR_COLLECTIVE_TIMEOUT_S=3)
        codes = sorted(trainer.wait().exit_code for trainer in trainers)
        self.assertIn(codes, ([PEER_LOST, TIMED_OUT], [TIMED_OUT, TIMED_OUT]))
        for trainer in trainers:
            self.assertIn('ELIXIR_COLLECTIVE_TIMEOUT_S', trainer.errors)
        self.stop_elixird(daemon)


if __name__ == '__main__':
    fake_gpu.main()
