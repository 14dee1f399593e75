"""A training over the fake CUDA runtime, from its start to its end."""

import fake_gpu


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


if __name__ == '__main__':
    fake_gpu.main()
