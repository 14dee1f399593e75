"""The times that train_gpt2 tells of a GPU's steps against the fake device's own account, which is
virtual: a busy machine changes nothing."""

import json

import fake_gpu
import harness

FEW, MANY = 4, 44


class Times(fake_gpu.FakeGpuTest):
    def compare(self, binding, **settings):
        """Steps FEW + 1 to MANY: what the trainer tells, and the device. Synchronous: the trainer's
        virtual time passes that of the device only where it waits for it. Starts differ by some ms."""
        runs = []
        for steps in (FEW, MANY):
            jsonl = f'{self.folder}/{steps}.jsonl'
            runs.append(self.train('--dtype', 'bf16', '--rcache-blocks', '3', '--update', 'sync',
                                   '--steps', steps, '--jsonl', jsonl, **settings).reports[0])
        lines = [json.loads(line) for line in harness.text_of(jsonl).splitlines()][FEW:]
        self.assertEqual(len(lines), MANY - FEW)
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


if __name__ == '__main__':
    fake_gpu.main()
