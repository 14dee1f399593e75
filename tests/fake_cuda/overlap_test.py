"""Copies hide behind operators: with kernels of 2 ms and a link of 16 GB/s a step takes, by the fake's
own clock, hardly more than its greatest leg."""

import fake_gpu

SLOW = {'KERNEL_US': 2000, 'LINK_GB_S': 16}
STEPS = (2, 5)
MOST = 1.10  # times the greatest leg

LEGS = {'compute': ('kernels', 'elixir_kernels', 'gemms'), 'up': ('h2d',), 'down': ('d2h',)}


class Overlap(fake_gpu.FakeGpuTest):
    def step(self, *flags, **settings):
        """(a step's time, that of its greatest leg) in virtual ns, without the start."""
        short, long = (self.train('--dtype', 'bf16', '--steps', steps, flags,
                                  **{**SLOW, **settings}).reports[0] for steps in STEPS)
        steps = STEPS[1] - STEPS[0]
        legs = [long.busy_ns(*kinds) - short.busy_ns(*kinds) for kinds in LEGS.values()]
        return (long.end_ns() - short.end_ns()) / steps, max(legs) / steps

    def test_a_step_takes_no_longer_than_its_greatest_leg(self):
        for flags in ([], ['--gpu-state-share', '0.5'], ['--checkpoint-activations']):
            with self.subTest(flags):
                step_ns, leg_ns = self.step(*flags)
                self.assertGreater(leg_ns, 0)
                self.assertLessEqual(step_ns, MOST * leg_ns)

    def test_copies_that_block_the_host_are_seen(self):
        """Where nothing may be page-locked, compute and uploads of like length come in turn."""
        step_ns, leg_ns = self.step(KERNEL_US=100, LINK_GB_S=4, PIN_LIMIT_MIB=0)
        self.assertGreater(step_ns, 1.3 * leg_ns)


if __name__ == '__main__':
    fake_gpu.main()
