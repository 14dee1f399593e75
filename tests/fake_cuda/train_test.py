"""A training over the fake CUDA runtime, from its start to its end."""

import json
import os
import re

import fake_gpu
import harness


class Train(fake_gpu.FakeGpuTest):
    def test_a_rank_trains_on_the_fake_gpu(self):
        finished = self.train('--steps', '3', '--dtype', 'bf16')
        self.assertEqual(len(finished.reports), 1, str(finished))
        report = finished.reports[0]
        self.assertEqual(report.contexts(), [0])
        self.assertGreater(report['launches'], 0)
        self.assertGreater(report.copies('h2d'), 0)
        self.assertGreater(report.copies('d2h'), 0)
        self.assertGreater(report.peak_bytes(), 0)
        self.assertEqual(report['bad_copies'], 0)

    def test_states_on_the_gpu_are_updated_by_elixirs_own_kernels(self):
        finished = self.train('--steps', '2', '--gpu-state-share', '1', '--clip-norm', '1')
        self.assertGreater(finished.reports[0].works('elixir_kernels'), 0)
        self.assert_sound(finished)

    def test_a_machine_file_of_a_larger_gpu_is_not_believed(self):
        """With 80 GB every state of gpt2-small is planned on the GPU; with the 2 GiB that are there
        the training would end for want of memory."""
        with open(os.path.join(harness.REPOSITORY, 'examples', 'machines', 'h100.json'),
                  encoding='ascii') as file:
            machine = json.load(file)
        machine['device'] = 'cuda (another)'
        path = os.path.join(self.folder, 'machine.json')
        with open(path, 'w', encoding='ascii') as file:
            json.dump(machine, file)

        def run(gib):
            return self.train('--model', 'small', '--steps', '1', '--dtype', 'bf16',
                              machine=path, MEMORY_GIB=gib)

        def states_on_gpu(finished):  # chunks of two plans may be of two lengths
            counts = re.search(r'states .*?(\d+) updated by the CPU, (\d+) by the GPU', finished.output)
            cpu, gpu = (int(count) for count in counts.groups())
            return gpu / (cpu + gpu)
        small, large = run(2), run(100)
        self.assertIn('machine_file_of_another_gpu', small.errors)
        self.assertIn('remedy="elixirctl probe"', small.errors)
        self.assertNotIn('machine_file_of_another_gpu', large.errors)
        self.assertLess(states_on_gpu(small), states_on_gpu(large))

    def test_norms_of_a_step_do_not_race_with_those_of_the_next(self):
        self.assert_sound(self.train('--steps', '6', '--gpu-state-share', '1', '--clip-norm', '0.5',
                                     KERNEL_US=50, LINK_GB_S=4))

    def test_random_delays_find_no_race(self):
        # Not the weights: torch's kernels write no gradients, so those are what memory held before,
        # and which memory that is depends on when copies are done.
        self.assert_sound(self.train('--steps', '3', '--dtype', 'bf16', '--gpu-state-share', '0.5',
                                     DELAY_US=300, SEED=3))


if __name__ == '__main__':
    fake_gpu.main()
