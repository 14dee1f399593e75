"""A GPU that fails in the midst of a training ends it with exit code 70 and CUDA's words, whenever it
does: never by a signal, never by waiting."""

import fake_gpu

FLAGS = ['--steps', '3', '--dtype', 'bf16', '--clip-norm', '1', '--gpu-state-share', '0.5']
POINTS, CALL_POINTS = (40, 10) if fake_gpu.NIGHTLY else (8, 3)


class Errors(fake_gpu.FakeGpuTest):
    def check(self, **setting):
        finished = self.train(FLAGS, exit_code=None, limit_s=60, FAIL_ERROR=700, **setting)
        self.assertEqual(finished.exit_code, 70, str(finished))
        self.assertRegex(finished.errors, 'illegal memory access', str(finished))

    def test_at_any_launch(self):
        launches = self.train(FLAGS).reports[0]['launches']
        for point in range(POINTS):
            after = 1 + point * (launches - 2) // (POINTS - 1)
            with self.subTest(after=after):
                self.check(FAIL_AFTER=after)

    def test_at_calls_of_any_kind(self):
        calls = self.train(FLAGS).reports[0]['calls']
        for name in ('cudaMemcpyAsync', 'cudaEventRecord', 'cudaEventSynchronize', 'cudaStreamWaitEvent'):
            for point in range(1, CALL_POINTS + 1):
                # How often the host waits depends on how fast it is: a first half is always reached.
                reached = calls[name] // 2 if name == 'cudaEventSynchronize' else calls[name]
                after = point * reached // (CALL_POINTS + 1)
                with self.subTest(name, after=after):
                    self.check(FAIL_AFTER=after, FAIL_CALL=name)

    def test_memory_that_torch_does_not_find_is_told_in_a_sentence(self):
        finished = self.train('--steps', '2', '--dtype', 'bf16', '--gpu-memory', '6MiB', exit_code=3)
        self.assertRegex(finished.errors, 'raise --gpu-memory; CUDA out of memory')
        self.assertNotIn('frame #', finished.errors)

    def test_an_error_of_the_device_before_anything_is_told_too(self):
        self.check(FAIL_AFTER=0, FAIL_CALL='cudaMalloc')


if __name__ == '__main__':
    fake_gpu.main()
