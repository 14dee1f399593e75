"""elixir-train trains every family of models, on text and tokens of the user's own; train_gpt2 is
another name for it."""

import json
import os
import re
import struct

import harness
from harness import NIGHTLY, TEXT, TINY, program

CONFIG = {'model_type': 'llama', 'vocab_size': 300, 'hidden_size': 64, 'intermediate_size': 96,
          'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
          'max_position_embeddings': 64}


class Families(harness.ElixirTest):
    def train(self, *flags, name='elixir-train'):
        return self.succeed(self.launch(1, program(name)), TINY, '--checksum', flags,
                            limit_s=240)

    def write(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, 'wb') as file:
            file.write(data)
        return path

    def test_the_loss_of_each_family_and_of_a_config_json_falls(self):
        config = self.write('config.json', json.dumps(CONFIG).encode())
        for flags, falls in ((['--model', 'gpt2-nano'], 1.5), (['--model', 'opt-nano'], 1.5),
                             (['--model', 'llama-nano'], 1.5),
                             (['--config', config, '--lr', '3e-3', *TEXT, '--bytes'], 1)):
            with self.subTest(flags=flags):
                text = self.train('--steps', '60', '--warmup-steps', '5', flags).output
                first, last = map(float, re.search('first_loss (.*) last_loss (.*) steps 60', text).groups())
                self.assertLess(last, first - falls)

    def test_a_llama_of_a_hundred_million_trains(self):
        if not NIGHTLY:
            self.skipTest('nightly: 97.5 M parameters')
        flags = ['--model', 'llama-100m', '--steps', '6', '--warmup-steps', '0', '--lr-schedule',
                 'constant']
        path = os.path.join(self.folder, 'steps.jsonl')
        self.train(flags, '--jsonl', path)
        with open(path, encoding='utf-8') as file:
            losses = [json.loads(line)['loss'] for line in file]
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0])

    def test_several_files_are_one_text_and_a_token_file_means_its_bytes(self):
        text = b'the quick brown fox jumps over the lazy dog\n' * 100
        head, tail = self.write('head', text[:1000]), self.write('tail', text[1000:])
        tokens = self.write('text.bin', struct.pack(f'<{len(text)}H', *text))
        parts = self.train('--steps', '4', '--data', head, tail).checksum
        self.assertEqual(self.train('--steps', '4', '--data', tokens, '--tokens-dtype', 'uint16').checksum, parts)
        self.assertNotEqual(self.train('--steps', '4', '--data', tail, head).checksum, parts)

    def test_train_gpt2_is_a_name_for_it(self):
        ours = self.train('--steps', '3').checksum
        for flags, name in (([], 'train_gpt2'), (['--model', 'nano'], 'train_gpt2'),
                            (['--model', 'gpt2-nano'], 'elixir-train')):
            self.assertEqual(self.train('--steps', '3', flags, name=name).checksum, ours)
        self.assertNotEqual(self.train('--steps', '3', '--layers', '3').checksum, ours)
        for name in ('elixir-train', 'train_gpt2'):
            self.assertIn(f'{name} [OPTIONS]', self.succeed(program(name), '--help').output)
            refused = self.run_program(program(name), '--model', 'llama-101m')
            self.assertEqual(refused.exit_code, 2)
            self.assertRegex(refused.errors, f"^{name}: .*did you mean 'llama-100m'")


if __name__ == '__main__':
    harness.main()
