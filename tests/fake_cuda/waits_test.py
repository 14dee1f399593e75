"""How often a step of train_gpt2 waits for what it has enqueued."""

import fake_gpu

FEW, MANY = 4, 8


class Waits(fake_gpu.FakeGpuTest):
    def of_a_step(self, *flags):
        """The waits for the compute stream of one step more."""
        few, many = (self.train('--steps', steps, flags, KERNEL_US=20,
                                LINK_GB_S=8).reports[0] for steps in (FEW, MANY))
        return (many.compute_waits() - few.compute_waits()) / (MANY - FEW)

    # Reading the loss that step() is given would be one.
    def test_none_for_the_compute_stream(self):
        for flags in ([], ['--dtype', 'bf16'], ['--accumulate', '4'], ['--clip-norm', '1', '--gpu-state-share', '0.5'],
                      ['--dtype', 'fp16'], ['--checkpoint-activations', '--update', 'immediate']):
            with self.subTest(flags=flags):
                self.assertEqual(self.of_a_step(*flags), 0)


if __name__ == '__main__':
    fake_gpu.main()
