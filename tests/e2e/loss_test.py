"""Training trains: the loss falls, and BF16 reaches what FP32 reaches."""

import json
import os

import harness
from harness import program

STEPS = 80


class Loss(harness.ElixirTest):
    def losses(self, dtype):
        """Of the demo's model, in a run of its own that is shorter, as its sequences are: without
        AVX-512 operators take twenty times as long in BF16 as in FP32."""
        path = os.path.join(self.folder, f'{dtype}.jsonl')
        self.succeed(self.launch(2, program('train_gpt2')), '--steps', str(STEPS), '--batch', '1', '--seq', '32',
                     '--dtype', dtype, '--jsonl', path, limit_s=240)
        with open(path, encoding='utf-8') as file:
            losses = [json.loads(line)['loss'] for line in file]
        self.assertEqual(len(losses), STEPS)
        return losses

    def test_bf16_reaches_the_loss_of_fp32(self):
        fp32, bf16 = self.losses('fp32'), self.losses('bf16')
        last_fp32, last_bf16 = (sum(losses[-20:]) / 20 for losses in (fp32, bf16))
        print(f'loss after {STEPS} steps: fp32 {last_fp32:.4f}, bf16 {last_bf16:.4f}')
        self.assertLess(last_fp32, fp32[0] - 1.5)
        self.assertLess(abs(last_bf16 - last_fp32), 0.05)
        # It was BF16: had the flag been lost, the losses would be equal to the last digit.
        self.assertNotEqual(fp32, bf16)


if __name__ == '__main__':
    harness.main()
