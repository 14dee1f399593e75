"""elixir-train trains every family of models; train_gpt2 is another name for it."""

import json
import os
import re

import harness
from harness import TINY, program

CONFIG = {'model_type': 'llama', 'vocab_size': 300, 'hidden_size': 64, 'intermediate_size': 96,
          'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
          'max_position_embeddings': 64}


class Families(harness.ElixirTest):
    def train(self, *flags, name='elixir-train', ranks=1):
        return self.succeed(self.launch(ranks, program(name)), TINY, '--checksum', flags,
                            limit_s=240)

    def first_and_last_loss(self, *flags):
        text = self.train('--steps', '60', '--warmup-steps', '5', flags).output
        return map(float, re.search('first_loss (.*) last_loss (.*) steps 60', text).groups())

    def test_the_loss_of_each_family_falls(self):
        for model in ('gpt2-nano', 'opt-nano', 'llama-nano'):
            with self.subTest(model=model):
                first, last = self.first_and_last_loss('--model', model)
                self.assertLess(last, first - 1.5)

    def test_a_config_json_is_trained(self):
        path = os.path.join(self.folder, 'config.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(CONFIG, file)
        first, last = self.first_and_last_loss('--config', path, '--lr', '3e-3')
        self.assertLess(last, first - 1)

    def test_a_llama_of_a_hundred_million_trains(self):
        flags = ['--model', 'llama-100m', '--steps', '6', '--warmup-steps', '0', '--lr-schedule',
                 'constant']
        path = os.path.join(self.folder, 'steps.jsonl')
        self.train(flags, '--jsonl', path)
        with open(path, encoding='utf-8') as file:
            losses = [json.loads(line)['loss'] for line in file]
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0])

    def test_ranks_and_plans_change_no_bit_of_a_llama(self):
        flags = ['--model', 'llama-nano', '--steps', '3']
        whole = self.train(flags).checksum
        self.assertEqual(self.train(flags, '--rcache-blocks', '2').checksum, whole)
        self.assertEqual(self.train(flags, ranks=2).checksum,
                         self.train(flags, '--chunk-numel', '262144', ranks=2).checksum)
        self.assertNotEqual(self.train(flags, '--seed', '2').checksum, whole)

    def test_train_gpt2_is_a_name_for_it(self):
        ours = self.train('--steps', '3').checksum
        for flags, name in (([], 'train_gpt2'), (['--model', 'nano'], 'train_gpt2'),
                            (['--model', 'gpt2-nano'], 'elixir-train'),
                            (['--model', 'nano'], 'elixir-train')):
            self.assertEqual(self.train('--steps', '3', flags, name=name).checksum, ours)
        self.assertNotEqual(self.train('--steps', '3', '--layers', '3').checksum, ours)
        for name in ('elixir-train', 'train_gpt2'):
            self.assertIn(f'{name} [OPTIONS]', self.succeed(program(name), '--help').output)
            refused = self.run_program(program(name), '--model', 'llama-101m')
            self.assertEqual(refused.exit_code, 2)
            self.assertRegex(refused.errors, f"^{name}: .*did you mean 'llama-100m'")


if __name__ == '__main__':
    harness.main()
