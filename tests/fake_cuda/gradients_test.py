"""Gradients on their way down, over the fake CUDA runtime: in how many copies, in how much device
memory, and without a wait of the host."""

import itertools
import json
import os
import re
import unittest

import fake_gpu
from fake_gpu import DTYPES, NIGHTLY, SHARES
from harness import program

FEW, MORE = 3, 6  # steps; figures of a step come of the difference


class Gradients(fake_gpu.FakeGpuTest):
    def difference(self, count, *flags, **how):
        """Of what `count` counts in a report, how much a step has; and the run's output."""
        few, more = (self.train('--steps', str(steps), *flags, **how) for steps in (FEW, MORE))
        for finished in (few, more):
            self.assert_sound(finished)
        return [(count(b) - count(a)) / (MORE - FEW)
                for a, b in zip(few.reports, more.reports)], more

    def chunks(self, finished):
        """Chunks whose gradients leave the device."""
        of = {name: int(value) for name, value in
              re.findall(r' (chunks|gpu_chunks|frozen_chunks)=(\d+)', finished.errors)}
        return of['chunks'] - of['gpu_chunks']

    def test_a_step_has_one_download_for_each_chunk_with_gradients(self):
        def gradients(report):  # the loss and norms are smaller
            return report.copies('d2h') - report.copies('d2h', size='<4K')

        for flags, rounds in (((), 1), (('--update', 'immediate'), 1),
                              (('--update', 'immediate', '--accumulate', '3'), 3)):
            with self.subTest(flags=flags):
                [downloads], finished = self.difference(gradients, *flags)
                self.assertEqual(downloads, rounds * self.chunks(finished), str(finished))

    def test_a_device_whose_link_is_slow_needs_no_more_memory(self):
        """Downloads take many times what backward takes: before, each gradient was kept for its."""
        flags = ('--model', 'small', '--seq', '32', '--dtype', 'bf16', '--steps', '2')
        at_once, late = (self.train(*flags, KERNEL_US=1, LINK_GB_S=rate).reports[0]
                         for rate in (0, 0.05))
        self.assertGreater(late.busy_ns('d2h'), 10 * late.busy_ns('kernels', 'gemms'))
        self.assertEqual(late.peak_bytes(), at_once.peak_bytes())

    def test_norms_of_chunks_on_the_gpu_come_down_behind_the_hosts_back(self):
        def pageable(report):
            return report.copies('d2h', 'pageable')

        flags = ('--dtype', 'bf16', '--gpu-state-share', '0.5')
        [without], _ = self.difference(pageable, *flags)
        [clipped], _ = self.difference(pageable, *flags, '--clip-norm', '1')
        self.assertEqual(clipped, without)  # the loss, at most

    def test_no_event_belongs_to_a_single_gradient(self):
        """Its chunk's way down is ordered and timed as one, though it holds all of the model's
        gradients here, some fifty."""
        def events(report):
            down = max((stream for stream in report['streams'] if not stream['default']),
                       key=lambda stream: stream['works'].get('d2h', 0))
            return down['event_records'] + down['event_waits']

        [a_step], finished = self.difference(events, '--chunk-numel', str(1 << 22))
        self.assertEqual(self.chunks(finished), 1)
        self.assertLess(a_step, 12)


class PlannedMemory(fake_gpu.FakeGpuTest):
    """The most that torch's allocator held at a time, against what the plan says of it."""

    MACHINE = {'gpu_memory_bytes': 6 << 30, 'host_memory_bytes': 16 << 30, 'd2h_gb_s': 20,
               'h2d_gb_s': 20, 'joint_gb_s': 30, 'gpu_update_gparam_s': 20, 'cpu_update_gparam_s': 1,
               'dram_gb_s': 50, 'gpu_tflops': 100}

    def test_with_one_rank(self):
        """Each type with two shares, and with either kind of backward."""
        for dtype, share, checkpointed in itertools.product(DTYPES, SHARES, (True, False)):
            turn = DTYPES.index(dtype) + SHARES.index(share) + checkpointed
            if NIGHTLY or turn % 3 == 0:
                self.check('nano', dtype, share, checkpointed)

    def test_with_two_ranks(self):
        """Each exchange and share once."""
        ways = (('host', '0'), *(('collective', share) for share in SHARES))
        for i, dtype, checkpointed in itertools.product(range(4), DTYPES, (True, False)):
            exchange, share = ways[i]
            if NIGHTLY or (DTYPES.index(dtype), checkpointed) == (i % 3, i % 2 == 1):
                self.check('nano', dtype, share, checkpointed, ranks=2, exchange=exchange)

    @unittest.skipUnless(NIGHTLY, 'a sample by default')
    def test_of_a_larger_model(self):
        for share in SHARES:
            self.check('small', 'bf16', share, True, batch='2', seq='256')

    def setUp(self):
        super().setUp()
        self.environment['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'  # 32 MiB, as on Hopper

    def check(self, model, dtype, share, checkpointed, batch='8', seq='128', ranks=1, exchange='host'):
        with self.subTest(model=model, dtype=dtype, share=share, checkpointed=checkpointed, ranks=ranks,
                          exchange=exchange):
            machine, plan = (os.path.join(self.folder, name) for name in ('machine.json', 'plan.json'))
            with open(machine, 'w', encoding='utf-8') as file:
                json.dump({**self.MACHINE, 'gpus': ranks, 'g2g_gb_s': 20 * (ranks - 1)}, file)
            regions = {'0': 'recompute', '0.5': 'host'}.get(share, 'auto')
            kept = ['--activations', regions if checkpointed else 'keep']
            self.succeed(program('elixirctl'), 'plan', '--model', f'gpt2-{model}', '--machine', machine,
                         '--batch', batch, '--seq', seq, '--dtype', dtype, '--gpu-state-share', share,
                         '--exchange', exchange, '--rcache-blocks', '4', kept, '--output', plan)
            finished = self.train('--model', model, '--batch', batch, '--seq', seq, '--dtype', dtype,
                                  '--plan', plan, '--steps', '20', ranks=ranks, DEVICES=ranks)
            ratios = re.findall(r'GPU memory measured .* predicted .* ratio ([\d.]+)', finished.errors)
            self.assertTrue(ratios, str(finished))
            for ratio in ratios:  # some 5 MiB too much is predicted, which of nano's 100 MiB is 5 %
                self.assertLess(float(ratio), 1.05, str(finished))
                self.assertGreater(float(ratio), 0.94, str(finished))


if __name__ == '__main__':
    fake_gpu.main()
