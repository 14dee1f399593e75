"""Trainer on two ranks under torchrun: DistributedDataParallel's losses, one hash, checkpoints that no rank waits
for, and runs that resume to the bit after their folder was moved; with both exchanges."""

import json
import os
import unittest

import python_case
from python_case import KINDS, WAYS, PythonCase, farthest

python_case.need('transformers', 'accelerate')

EXCHANGES = ('host', 'collective')
CASES = [(kind, way) for way in WAYS for kind in KINDS]
EVERY_CASE = os.environ.get('ELIXIR_EVERY_CASE') == '1'


class Ranks(PythonCase):
    def told(self, cases):
        """What the cases tell, in their order; all in two processes: an import of torch and Trainer takes seconds."""
        lines = self.run_ranks(2, 'ranks_program.py', json.dumps(cases), limit_s=600)
        told = [json.loads(line[len('told '):]) for line in lines if line.startswith('told ')]
        self.assertEqual(len(told), len(cases))
        return told

    def test_losses_are_those_of_ddp(self):
        for kind, way in CASES if EVERY_CASE else CASES[:1]:
            case = {'kind': kind, 'way': way, 'folder': self.folder}
            with self.subTest(kind=kind, way=way):
                theirs, *both = self.told([{**case, 'which': 'torch'}, *(
                    {**case, 'which': 'elixir', 'exchange': exchange} for exchange in EXCHANGES)])
                self.assertEqual(theirs['wrapped'], 'DistributedDataParallel')
                for ours in both:
                    self.assertLess(farthest(ours['losses'], theirs['losses']), 1e-6)
                    self.assertLess(farthest(ours['norms'], theirs['norms']), 1e-5)
                    self.assertTrue(ours['saved_equal'])
                self.assertEqual(len({ours['hash'] for ours in both}), 1)  # in FP32 both exchanges round alike

    def test_a_moved_checkpoint_resumes_to_the_bit(self):
        """In other processes than those that have written it."""
        cases = [{'which': 'elixir', 'kind': 'qwen3', 'exchange': exchange, 'dtype': dtype,
                  'folder': os.path.join(self.folder, f'{exchange}-{dtype}')}
                 for exchange in EXCHANGES for dtype in ('float32', 'bfloat16')
                 if EVERY_CASE or (exchange == 'host') != (dtype == 'float32')]
        whole = self.told([{**case, 'save': True} for case in cases])
        for case in cases:
            case['resume'] = case['folder'] + '-moved'
            os.rename(os.path.join(case['folder'], 'checkpoint-10'), case['resume'])
            self.assertLess(os.path.getsize(os.path.join(case['resume'], 'optimizer.pt')), 10_000)
        for case, before, after in zip(cases, whole, self.told(cases)):
            self.assertEqual(after['hash'], before['hash'], case)


if __name__ == '__main__':
    unittest.main()
