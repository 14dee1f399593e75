"""Over the fake CUDA runtime: every program that can use a GPU starts on one and reaches its device
code. (One that is told to stay on the CPU loads nothing of CUDA: client_cuda_library_test.)"""

import os
import signal
import unittest

import fake_gpu
from fake_gpu import NIGHTLY

BENCH = os.environ['ELIXIR_BENCH_DIR']
TESTS = os.path.join(BENCH, '..', 'tests')


class Start(fake_gpu.FakeGpuTest):
    def tearDown(self):
        # That which a lone trainer started, where there is one.
        for pid in self.processes('elixird'):
            os.kill(pid, signal.SIGTERM)
        self.assert_no_processes()
        super().tearDown()

    def reaches_the_device(self, *command, **how):
        run = self.fake(*command, **how)
        self.assertGreater(sum(report['launches'] for report in run.reports), 0, str(run))
        return run

    @unittest.skipUnless(NIGHTLY, 'the default build leaves benchmarks out')
    def test_benchmarks(self):
        self.reaches_the_device(os.path.join(BENCH, 'interception'), '--device', 'cuda', '--json')
        self.reaches_the_device(os.path.join(BENCH, 'kernels'), '--numel', '100000', '--json')
        link = self.fake(os.path.join(BENCH, 'link'), '--device', 'cuda', '--json', '--chunks', '2',
                         '--chunk-numel', '65536')
        self.assertIn('"not_page_locked_bytes":0', link.output.replace(' ', ''))
        self.assertGreater(link.reports[0].copies('h2d', 'pinned'), 0, str(link))

    def test_the_correctness_test(self):
        self.reaches_the_device(os.path.join(TESTS, 'client_gpu_training_test'),
                                '--gtest_filter=*StartsAndReachesTheDevice')


if __name__ == '__main__':
    fake_gpu.main()
