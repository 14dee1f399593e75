"""Training on a GPU as a user starts it. Needs one: skipped, or failed if ELIXIR_REQUIRE_GPU is set,
where there is none."""

import glob
import json
import os
import sys

import harness
from harness import program

TRAIN = ['--device', 'cuda', '--dtype', 'bf16', '--deterministic', '--batch', '2', '--seq', '128',
         '--steps', '6', '--checksum']


class Gpu(harness.ElixirTest):
    def train(self, ranks, *flags, exit_code=0):
        finished = self.run_program(self.launch(ranks, program('train_gpt2')), TRAIN, flags,
                                    limit_s=120)
        self.assertEqual(finished.exit_code, exit_code, str(finished))
        return finished

    def test_the_plan_changes_no_bit(self):
        plans = [[], ['--rcache-blocks', '3'], ['--gpu-state-share', '0.5'],
                 ['--gpu-state-share', '1'], ['--chunk-numel', '1048576', '--rcache-blocks', '2']]
        sums = [self.train(1, plan).checksum for plan in plans]
        self.assertEqual(len(set(sums)), 1, str(list(zip(plans, sums))))

    def test_two_ranks_share_the_gpu_by_the_host_exchange(self):
        plans = [[], ['--rcache-blocks', '3']]
        sums = [self.train(2, '--exchange', 'host', plan).checksum for plan in plans]
        self.assertEqual(len(set(sums)), 1, str(list(zip(plans, sums))))

    def test_two_ranks_on_one_gpu_are_refused_by_the_collective_exchange(self):
        if len(glob.glob('/dev/nvidia[0-9]*')) > 1:
            self.skipTest('this machine has a GPU for each rank')
        self.assertIn('--exchange host',
                      self.train(2, '--exchange', 'collective', exit_code=2).all_text)

    def test_memory_beyond_the_limit_is_refused_with_need_and_have(self):
        errors = self.train(1, '--gpu-memory', '8MiB', '--gpu-state-share', '1', exit_code=3).errors
        self.assertIn('--gpu-state-share', errors)

    def test_doctor_knows_the_gpu(self):
        doctor = json.loads(self.run_program(program('elixirctl'), 'doctor', '--gpu', '--json',
                                             limit_s=120).output)
        self.assertTrue(doctor)


if __name__ == '__main__':
    if not glob.glob('/dev/nvidia[0-9]*'):
        if os.environ.get('ELIXIR_REQUIRE_GPU'):
            sys.exit('no GPU is present, and ELIXIR_REQUIRE_GPU is set')
        harness.skip_all('no GPU is present')
    harness.main()
