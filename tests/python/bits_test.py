"""A training in Python has the bits of the same training in C++ (plain_net.cpp)."""

import os
import subprocess
import unittest

import python_case
from python_case import PythonCase, masters_hash, net, net_loss

python_case.need('numpy')

import torch  # noqa: E402
import elixir  # noqa: E402


class Bits(PythonCase):
    def in_python(self, dtype, steps):
        model = net()
        optimizer = elixir.AdamW(model, lr=1e-2, dtype=dtype)
        optimizer.start()
        for number in range(steps):
            net_loss(model, number).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return masters_hash(optimizer)

    def test_they_are_those_of_cpp(self):
        program = os.path.join(python_case.BUILD, 'tests', 'plain_net')
        for dtype in ('fp32', 'bf16'):
            theirs = subprocess.run([program, dtype], capture_output=True, text=True, check=True).stdout.strip()
            self.assertEqual(self.in_python(dtype, 10), theirs.zfill(16), dtype)
            self.assertNotEqual(self.in_python(dtype, 9), theirs.zfill(16), dtype)


if __name__ == '__main__':
    unittest.main()
