"""elixir.init(): a Llama of 7 billion parameters takes hardly any memory, and buffers keep their bits."""

import time
import unittest

import python_case
from python_case import TIMING, PythonCase, small_model

python_case.need('transformers')

import torch  # noqa: E402
import transformers  # noqa: E402
import elixir  # noqa: E402

GIB = 1 << 30


def resident_bytes(name):
    """VmRSS or VmHWM of this process."""
    with open('/proc/self/status', encoding='ascii') as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ':'))


class Init(PythonCase):
    def test_a_model_of_seven_billion_parameters(self):
        small_model('llama')  # what transformers imports for the first one
        before, begin_s = resident_bytes('VmRSS'), time.monotonic()
        with elixir.init():
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig())
        seconds = time.monotonic() - begin_s
        grown = resident_bytes('VmHWM') - before
        count = sum(parameter.numel() for parameter in model.parameters())
        self.assertGreater(count, 6.5e9)
        self.assertTrue(all(parameter.is_meta for parameter in model.parameters()))
        print(f'{count / 1e9:.1f} billion parameters: {seconds:.2f} s, {grown / 2**20:.0f} MiB')
        self.assertLess(grown, GIB)
        if TIMING:
            self.assertLess(seconds, 3)  # cannot fail by chance: TIMING

    def test_buffers_keep_their_bits(self):
        expected = small_model('llama').model.rotary_emb.inv_freq
        for dtype in ('fp32', 'bf16'):
            with elixir.init():
                model = small_model('llama')
            optimizer = elixir.AdamW(model, dtype=dtype)
            optimizer.start()
            buffer = model.model.rotary_emb.inv_freq
            self.assertEqual(buffer.dtype, torch.float32)
            self.assertTrue(torch.equal(buffer, expected), dtype)


if __name__ == '__main__':
    unittest.main()
