"""Over the fake CUDA runtime: what a training shares with elixird is page-locked, whatever it is, and a
refusal is said by all who should say it."""

import json

import fake_gpu
from fake_gpu import program

# Beside the chunks a step copies its inputs, the loss and norms.
SMALL_COPIES_A_STEP = 64 << 10


class Pinning(fake_gpu.FakeGpuTest):
    def pageable_a_step(self, *flags, **how):
        runs = [self.train('--steps', steps, flags, **how) for steps in (3, 5)]
        for run in runs:
            self.assert_sound(run)
        three, five = (sum(report.copied_bytes(memory='pageable') for report in run.reports)
                       for run in runs)
        for report in runs[1].reports:
            self.assertEqual(report['refused']['count'], 0, str(runs[1]))
            self.assertGreater(report['registered']['count'], 0, str(runs[1]))
        self.assertIn('pageable_bytes=0', runs[1].errors)
        return (five - three) / 2

    def test_no_chunk_is_copied_from_or_to_pageable_memory(self):
        for flags in (['--dtype', 'bf16'], ['--dtype', 'fp32', '--gpu-state-share', '0.5'],
                      ['--dtype', 'bf16', '--update', 'immediate']):
            with self.subTest(flags):
                self.assertLess(self.pageable_a_step(flags), SMALL_COPIES_A_STEP)

    def test_nor_with_two_ranks_that_read_each_others_params(self):
        self.assertLess(self.pageable_a_step('--exchange', 'host', ranks=2, DEVICES=2),
                        2 * SMALL_COPIES_A_STEP)

    def test_a_refusal_is_loud_and_does_not_end_the_training(self):
        run = self.train('--steps', '2', PIN_LIMIT_MIB=1)
        self.assertRegex(run.errors, r'event=not_page_locked bytes="[0-9.]+ MiB" of="[0-9.]+ MiB" text="cannot '
                                     r'page-lock .*ulimit -l unlimited')
        self.assertNotIn('pageable_bytes=0', run.errors)
        self.assertGreater(run.reports[0].copied_bytes('h2d', 'pageable'), SMALL_COPIES_A_STEP)

    def test_the_doctor_tries_memory_of_the_same_kind(self):
        fine = self.fake(program('elixirctl'), 'doctor', '--gpu', '--json', exit_code=None)
        gpu = json.loads(fine.output)['gpu']['gpus'][0]
        self.assertEqual(gpu['pinning_error'], '', str(fine))
        self.assertFalse(gpu['read_only_pinning'])
        self.assertEqual(fine.reports[0]['refused']['count'], 0)
        self.assertEqual(fine.reports[0].copies(memory='pageable'), 0)
        refused = self.fake(program('elixirctl'), 'doctor', '--gpu', exit_code=None, PIN_LIMIT_MIB=1)
        self.assertNotEqual(refused.exit_code, 0, str(refused))
        self.assertIn('CANNOT BE PAGE-LOCKED', refused.output)
        self.assertGreater(refused.reports[0].copies('h2d', 'pageable'), 0)


if __name__ == '__main__':
    fake_gpu.main()
