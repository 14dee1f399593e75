"""Every way to train on a GPU ends well over the fake and keeps the promises of a step: nothing that
CUDA would refuse or that races, no copy that blocks, one download a chunk, at most one wait for what
computes.

    matrix_test.py RANKS EXCHANGE DTYPE    one group; a sample, with ELIXIR_EVERY_CASE all of it
"""

import itertools
import re
import sys

import fake_gpu
from fake_gpu import DTYPES, NIGHTLY, SHARES

MODES = {'plain': [], 'clip': ['--clip-norm', '1'], 'accumulate': ['--accumulate', '2'],
         'dynamic': ['--loss-scale', 'dynamic']}
CHECKPOINTING = [[], ['--checkpoint-activations']]
STEPS = (2, 5)
# What is smaller is no gradient of a chunk but a loss, a norm or a flag.
LEAST_CHUNK = '<4K'


def combinations(ranks, exchange, dtype):
    """(name, flags) of a group. Not there: a loss scale without FP16, and several ranks' host
    exchange with states on the GPU."""
    modes = [mode for mode in MODES if mode != 'dynamic' or dtype == 'fp16']
    shares = ['0'] if ranks > 1 and exchange == 'host' else SHARES
    for mode, share, again in itertools.product(modes, shares, CHECKPOINTING):
        if not NIGHTLY and not in_sample(modes.index(mode), SHARES.index(share), bool(again), dtype):
            continue
        name = f'{mode}, share {share}{", checkpointing" if again else ""}'
        yield name, [*MODES[mode], '--gpu-state-share', share, *again]


def in_sample(mode, share, again, dtype):
    """Over the types, each of the three modes meets each share, each share each type, and most
    meet both kinds of backward."""
    turn = mode + DTYPES.index(dtype)
    return (turn + share) % 3 == 0 and again == ((turn + mode // 3) % 2 == 1)


class Matrix(fake_gpu.FakeGpuTest):
    ranks, exchange, dtype = 1, 'host', 'fp32'

    def run_group(self, flags):
        """The runs of two numbers of steps."""
        devices = {'DEVICES': self.ranks} if self.exchange == 'collective' else {}
        return [self.train('--dtype', self.dtype, '--steps', steps, flags,
                           *(['--exchange', self.exchange] if self.ranks > 1 else []),
                           ranks=self.ranks, **devices) for steps in STEPS]

    def test_every_combination(self):
        for name, flags in combinations(self.ranks, self.exchange, self.dtype):
            with self.subTest(name):
                short, long = self.run_group(flags)
                for finished in (short, long):
                    self.assertEqual(len(finished.reports), self.ranks, str(finished))
                    self.assert_sound(finished)
                self.check_steps(short, long, passes=2 if '--accumulate' in flags else 1)

    def check_steps(self, short, long, passes):
        plan = re.search(r'event=plan .*?chunks=(\d+) gpu_chunks=(\d+)', long.all_text)
        chunks = int(plan.group(1)) - int(plan.group(2))  # whose gradients go to the host
        steps = STEPS[1] - STEPS[0]
        # Processes come in no order, so sums over ranks.
        def more(count):
            return sum(map(count, long.reports)) - sum(map(count, short.reports))
        self.assertTrue(all(report['refused']['count'] == 0 for report in long.reports),
                     f'memory is not page-locked: {long}')
        self.assertTrue(more(lambda report: report.copies(memory='pageable')) == 0,
                     f'pageable copies after the first step: {long}')
        downloads = more(lambda report: report.copies('d2h') - report.copies('d2h', size=LEAST_CHUNK))
        self.assertTrue(downloads == chunks * passes * steps * self.ranks,
                     f'{downloads} downloads in {steps} steps of {chunks} chunks: {long}')
        waits = more(lambda report: report.compute_waits())
        self.assertTrue(waits <= steps * self.ranks,
                     f'{waits} waits for the compute stream in {steps} steps: {long}')


if __name__ == '__main__':
    if len(sys.argv) > 3:
        Matrix.dtype = sys.argv.pop(3)
        Matrix.exchange = sys.argv.pop(2)
        Matrix.ranks = int(sys.argv.pop(1))
    fake_gpu.main()
