"""Steps of train_gpt2 by the fake device's own account, which is virtual, so that a busy machine changes
nothing: what the trainer tells of their time, how often they wait, and how far copies hide behind
operators."""

import json

import fake_gpu
import harness

LEGS = {'compute': ('kernels', 'elixir_kernels', 'gemms'), 'up': ('h2d',), 'down': ('d2h',)}
MOST = 1.10  # times the greatest leg


class Steps(fake_gpu.FakeGpuTest):
    def two_runs(self, few, many, *flags, **settings):
        """Reports of two runs, whose difference has no start."""
        return [self.train('--steps', steps, flags, **settings).reports[0] for steps in (few, many)]

    # ---- times ----

    def compare(self, binding, **settings):
        """Steps 5 to 44: what the trainer tells, and the device. Synchronous: the trainer's virtual time
        passes that of the device only where it waits for it. Starts differ by some ms."""
        first, last = 4, 44
        jsonl = f'{self.folder}/steps.jsonl'
        runs = self.two_runs(first, last, '--dtype', 'bf16', '--rcache-blocks', '3', '--update', 'sync',
                             '--jsonl', jsonl, **settings)
        lines = [json.loads(line) for line in harness.text_of(jsonl).splitlines()][first:]
        self.assertEqual(len(lines), last - first)
        few, many = (self.of_compute(report) for report in runs)
        busy_ms, end_ms = (many[i] - few[i] for i in (0, 1))
        told = {name: sum(line[name] for line in lines) for name in ('compute_ms', 'exposed_ms')}
        step_ms = told['compute_ms'] + told['exposed_ms']
        what = f'{told}, the device: busy {busy_ms} of {end_ms} ms'
        self.assertLess(abs(step_ms - end_ms), 0.05 * end_ms, what)
        self.assertLess(abs(told['exposed_ms'] - (end_ms - busy_ms)), 0.05 * end_ms, what)
        self.assertEqual({line['binding'] for line in lines}, {binding}, what)
        return told

    def of_compute(self, report):
        """How long the compute stream was busy, and when it ended, in ms."""
        stream = [stream for stream in report['streams'] if stream['default']][0]
        return 1e-6 * sum(stream['busy_ns'].values()), 1e-6 * stream['last_ns']

    def test_behind_a_slow_link_uploads_bind(self):
        told = self.compare('h2d', LINK_GB_S=1, KERNEL_US=5)
        self.assertGreater(told['exposed_ms'], told['compute_ms'])

    def test_with_slow_kernels_compute_binds(self):
        told = self.compare('compute', LINK_GB_S=64, KERNEL_US=200)
        self.assertLess(told['exposed_ms'], 0.1 * told['compute_ms'])

    # ---- waits ----

    # Reading the loss that step() is given would be one.
    def test_no_step_waits_for_the_compute_stream(self):
        for flags in ([], ['--dtype', 'bf16'], ['--accumulate', '4'], ['--clip-norm', '1', '--gpu-state-share', '0.5'],
                      ['--dtype', 'fp16'], ['--checkpoint-activations', '--update', 'immediate']):
            with self.subTest(flags=flags):
                few, many = self.two_runs(4, 8, flags, KERNEL_US=20, LINK_GB_S=8)
                self.assertEqual(many.compute_waits(), few.compute_waits())

    def test_activations_go_to_host_memory_without_waits(self):
        """And without races: what they leave, operators use again."""
        jsonl = f'{self.folder}/steps.jsonl'
        few, many = self.two_runs(4, 8, '--dtype', 'bf16', '--activations', 'host', '--jsonl', jsonl, KERNEL_US=20,
                                  LINK_GB_S=8)
        self.assertEqual(many.compute_waits(), few.compute_waits())
        moved = [(line['activation_d2h_bytes'], line['activation_h2d_bytes'])
                 for line in map(json.loads, harness.text_of(jsonl).splitlines())]
        self.assertGreater(min(moved[-1]), 0)
        self.assertEqual(set(moved[3:]), {moved[-1]})  # the same in each step, once products are known
        # The last ones never come up, since they have not gone.
        self.assertGreater(moved[-1][0], moved[-1][1])

    # ---- overlap ----

    def a_step(self, *flags, **settings):
        """(a step's time, that of its greatest leg) in virtual ns."""
        short, long = self.two_runs(2, 5, '--dtype', 'bf16', flags, **settings)
        legs = [long.busy_ns(*kinds) - short.busy_ns(*kinds) for kinds in LEGS.values()]
        return (long.end_ns() - short.end_ns()) / 3, max(legs) / 3

    def test_with_kernels_of_2_ms_a_step_takes_no_longer_than_its_greatest_leg(self):
        for flags in ([], ['--gpu-state-share', '0.5'], ['--checkpoint-activations'], ['--activations', 'host']):
            with self.subTest(flags):
                step_ns, leg_ns = self.a_step(*flags, KERNEL_US=2000, LINK_GB_S=16)
                self.assertGreater(leg_ns, 0)
                self.assertLessEqual(step_ns, MOST * leg_ns)

    def test_copies_that_block_the_host_are_seen(self):
        """Where nothing may be page-locked, compute and uploads of like length come in turn."""
        step_ns, leg_ns = self.a_step(KERNEL_US=100, LINK_GB_S=4, PIN_LIMIT_MIB=0)
        self.assertGreater(step_ns, 1.3 * leg_ns)


if __name__ == '__main__':
    fake_gpu.main()
