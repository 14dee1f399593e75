"""Trainer on two ranks under torchrun: DistributedDataParallel's losses, one hash, checkpoints that no rank waits
for, and runs that resume to the bit after their folder was moved; with both exchanges."""

import json
import os
import unittest

import python_case
from python_case import PythonCase, farthest

python_case.need('transformers', 'accelerate')

EXCHANGES = ('host', 'collective')
EVERY_CASE = os.environ.get('ELIXIR_EVERY_CASE') == '1'


class Ranks(PythonCase):
    def told(self, *args):
        lines = self.run_ranks(2, 'ranks_program.py', *args)
        (line,) = [line for line in lines if line.startswith('told ')]
        return json.loads(line[len('told '):])

    def test_losses_are_those_of_ddp(self):
        for kind in ('llama', 'gpt2') if EVERY_CASE else ('llama',):
            theirs = self.told('torch', kind, self.folder)
            self.assertEqual(theirs['wrapped'], 'DistributedDataParallel')
            hashes = set()
            for exchange in EXCHANGES:
                with self.subTest(kind=kind, exchange=exchange):
                    ours = self.told('elixir', kind, self.folder, '--exchange', exchange)
                    self.assertLess(farthest(ours['losses'], theirs['losses']), 1e-6)
                    self.assertLess(farthest(ours['norms'], theirs['norms']), 1e-5)
                    self.assertTrue(ours['saved_equal'])
                    hashes.add(ours['hash'])
            self.assertEqual(len(hashes), 1)  # in FP32 both exchanges round alike

    def test_a_moved_checkpoint_resumes_to_the_bit(self):
        for exchange in EXCHANGES:
            for dtype in ('float32', 'bfloat16'):
                if not EVERY_CASE and (exchange == 'host') == (dtype == 'float32'):
                    continue
                with self.subTest(exchange=exchange, dtype=dtype):
                    how = ('--exchange', exchange, '--dtype', dtype)
                    first = os.path.join(self.folder, f'{exchange}-{dtype}')
                    whole = self.told('elixir', 'qwen3', first, '--save', *how)
                    moved = os.path.join(self.folder, f'moved-{exchange}-{dtype}')
                    os.rename(os.path.join(first, 'checkpoint-10'), moved)
                    self.assertLess(os.path.getsize(os.path.join(moved, 'optimizer.pt')), 10_000)
                    resumed = self.told('elixir', 'qwen3', self.folder, '--resume', moved, *how)
                    self.assertEqual(resumed['hash'], whole['hash'])


if __name__ == '__main__':
    unittest.main()
