"""Both ways of exchanging between ranks and both placements of chunks, as a user asks for them."""

import os

import harness
from harness import TINY, program

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 2, 3, 5


class Exchange(harness.ElixirTest):
    def train(self, ranks, *flags, steps=4):
        return self.succeed(self.launch(ranks, program('train_gpt2')), TINY, '--steps', str(steps),
                            '--checksum', flags)

    def test_homes_and_exchanges_change_no_bit(self):
        plain = {ranks: self.train(ranks).checksum for ranks in (1, 2)}
        self.assertNotEqual(plain[1], plain[2])
        for ranks, flags in (
                (1, ['--gpu-state-share', '0.3']),
                (1, ['--gpu-state-share', '1']),
                (2, ['--gpu-state-share', '0.5', '--rcache-blocks', '3']),
                (2, ['--gpu-state-share', '1']),
                (2, ['--exchange', 'collective']),
                (2, ['--exchange', 'collective', '--gpu-state-share', '0.5']),
                (2, ['--exchange', 'collective', '--gpu-state-share', '1', '--rcache-blocks', '5'])):
            with self.subTest(ranks=ranks, flags=flags):
                self.assertEqual(self.train(ranks, flags).checksum, plain[ranks])
        self.assert_nothing_left()

    def test_bf16_homes_change_no_bit_either(self):
        for ranks, flags in ((1, []), (2, ['--exchange', 'collective'])):
            plain = self.train(ranks, flags, '--dtype', 'bf16').checksum
            self.assertEqual(self.train(ranks, flags, '--dtype', 'bf16', '--gpu-state-share',
                                        '0.5').checksum, plain)

    def test_status_says_which(self):
        job = self.start(self.launch(2, program('train_gpt2')), TINY, harness.ENDLESS,
                         '--exchange', 'collective', '--gpu-state-share', '0.5')
        job.wait_for_text(r'step +3/')
        entry, = self.status()['jobs']
        self.assertEqual(entry['exchange'], 'collective')
        self.assertEqual(entry['ranks'], 2)
        self.assertEqual(entry['world_size'], 2)
        self.assertEqual(entry['gpu_chunks'], (entry['chunks'] + 1) // 2)
        job.signal(harness.signal.SIGTERM)
        job.wait()

    def test_torchruns_store_serves_the_rendezvous(self):
        ours = self.train(2)
        daemon = self.start_elixird()
        torchrun = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'torchrun')
        theirs = self.succeed(torchrun, '--no-python', '--nproc-per-node', '2', '--master-port',
                              str(harness.free_port()), program('train_gpt2'), TINY, '--steps', '4', '--checksum',
                              '--exchange', 'collective', limit_s=120)
        self.assertEqual(theirs.checksum, ours.checksum)
        self.stop_elixird(daemon)


class BadInput(harness.ElixirTest):
    def refuse(self, exit_code, *flags, environment=None):
        finished = self.run_program(program('train_gpt2'), TINY, '--steps', '2', flags,
                                    environment=environment)
        self.assertEqual(finished.exit_code, exit_code, str(finished))
        return finished.errors

    def test_flags_out_of_range_say_what_is_possible(self):
        self.assertIn('auto, host or collective',
                      self.refuse(INVALID_ARGUMENT, '--exchange', 'pigeon'))
        self.assertIn('[0, 1]', self.refuse(INVALID_ARGUMENT, '--gpu-state-share', '1.5'))
        self.assertIn('auto, cpu or cuda', self.refuse(INVALID_ARGUMENT, '--device', 'tpu'))
        self.assertIn('--gpu-memory', self.refuse(INVALID_ARGUMENT, '--gpu-memory', 'lots'))

    def test_a_plan_beyond_the_devices_memory_is_refused_with_need_and_have(self):
        errors = self.refuse(RESOURCE_EXHAUSTED, '--gpu-memory', '1MiB', '--gpu-state-share', '1')
        self.assertIn('1.00 MiB', errors)
        self.assertIn('--gpu-state-share', errors)

    def test_the_host_exchange_serves_one_node(self):
        environment = {'RANK': '0', 'WORLD_SIZE': '4', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '2',
                       'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(harness.free_port())}
        errors = self.refuse(INVALID_ARGUMENT, '--exchange', 'host', environment=environment)
        self.assertIn('--exchange collective', errors)

    def test_cuda_without_a_gpu_says_what_is_missing(self):
        if os.path.exists('/dev/nvidiactl'):
            self.skipTest('this machine has a GPU')
        errors = self.refuse(UNAVAILABLE, '--device', 'cuda')
        self.assertIn('driver', errors)


if __name__ == '__main__':
    harness.main()
