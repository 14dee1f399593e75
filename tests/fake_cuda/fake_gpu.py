"""Trainings over the fake CUDA runtime, and what its reports say. For tests that ctest starts by
elixir_fakegpu_test, in which every process has the fake (README.md)."""

import glob
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import NIGHTLY, program  # noqa: E402, F401

DTYPES = ['fp32', 'bf16', 'fp16']
SHARES = ['0', '0.5', '1']  # of the states, on the GPU
TINY = ['--device', 'cuda', '--model', 'nano', '--batch', '1', '--seq', '32', '--threads', '1']


class Report:
    """What one process counted (README.md). `later - earlier` is the difference of two runs that
    differ in their number of steps alone."""

    def __init__(self, counters):
        self.json = counters

    def copies(self, direction=None, memory=None, size=None):
        """Copies that match: how many."""
        return sum(copy['count'] for copy in self._copies(direction, memory, size))

    def copied_bytes(self, direction=None, memory=None, size=None):
        return sum(copy['bytes'] for copy in self._copies(direction, memory, size))

    def _copies(self, direction, memory, size):
        return [copy for copy in self.json['copies']
                if direction in (None, copy['direction']) and memory in (None, copy['memory'])
                and size in (None, copy['size'])]

    def compute_waits(self):
        """How often the host waited for torch's default stream or for the whole device. Not to free
        page-locked memory, which is done at a process' end alone."""
        return sum(wait['count'] for wait in self.json['host_waits']
                   if (wait['default'] or wait['stream'] < 0) and wait['call'] != 'cudaFreeHost')

    def counts(self, name):
        return self.json['counts'].get(name, 0)

    def works(self, kind):
        """Works enqueued: kernels, elixir_kernels, gemms, h2d, d2h, d2d, memsets, other."""
        return sum(stream['works'].get(kind, 0) for stream in self.json['streams'])

    def busy_ns(self, *kinds):
        return sum(stream['busy_ns'].get(kind, 0) for stream in self.json['streams']
                   for kind in kinds)

    def end_ns(self):
        """When the last work of all streams ends, virtually."""
        return max((stream['last_ns'] for stream in self.json['streams']), default=0)

    def peak_bytes(self, device=0):
        return max((entry['peak_bytes'] for entry in self.json['devices']
                    if entry['device'] == device), default=0)

    def contexts(self):
        """The devices on which the process made a context."""
        return [entry['device'] for entry in self.json['devices'] if entry['contexts']]

    def __getitem__(self, name):
        return self.json[name]


class FakeGpuTest(harness.ElixirTest):
    """harness.ElixirTest, whose processes have the fake. Trainings do not measure it."""

    def setUp(self):
        super().setUp()
        self.environment['ELIXIR_PROBE'] = '0'

    def fake(self, *command, ranks=None, exit_code=0, limit_s=120, machine=None, **settings):
        """Runs a program with FAKE_CUDA_<settings> (and FAKE_NCCL_<...> as they are), by elixir-run where `ranks` are given, with a
        machine file where one is. Returns what it left (harness.Finished), with `reports`: one of
        each process that used CUDA."""
        reports = os.path.join(self.folder, f'reports{len(self.started)}')
        os.mkdir(reports)
        environment = {name if name.startswith('FAKE_NCCL_') else f'FAKE_CUDA_{name}': str(value)
                       for name, value in settings.items()}
        if machine is not None:
            environment['ELIXIR_MACHINE_FILE'] = machine
        environment['FAKE_CUDA_REPORT'] = os.path.join(reports, '%p.json')
        words = harness.flat(command)
        if ranks is not None:
            words = self.launch(ranks, *words)
        finished = self.run_program(words, limit_s=limit_s, environment=environment)
        finished.reports = [Report(json.loads(harness.text_of(path)))
                            for path in sorted(glob.glob(os.path.join(reports, '*.json')))]
        if exit_code is not None:
            self.assertEqual(finished.exit_code, exit_code, str(finished))
        return finished

    def train(self, *flags, ranks=1, **how):
        """train_gpt2 of the smallest model; see fake(). What `flags` say of it holds."""
        given = harness.flat(flags)
        usual = [word for name, value in zip(TINY[::2], TINY[1::2]) if name not in given
                 for word in (name, value)]
        return self.fake(program('train_gpt2'), usual, given, ranks=ranks, **how)

    def assert_sound(self, finished):
        """What holds for every run: no race, no copy that CUDA would refuse, none of pinned copies."""
        self.assertTrue(finished.reports, str(finished))
        for report in finished.reports:
            self.assertEqual(report['races'], 0, str(finished))
            self.assertEqual(report['bad_copies'], 0, str(finished))
            self.assertEqual(report['private_files']['count'], 0, str(finished))


def main():
    harness.main()
