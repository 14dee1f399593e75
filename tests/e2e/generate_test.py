"""What a model has learnt is seen: elixir-generate continues from a checkpoint, elixir-train shows
samples, and these disturb nothing."""

import json
import os
import re
import shutil
import unittest

import harness
from checkpoint_run import DROPOUT, Checkpoint
from harness import TEXT, program

class Samples(Checkpoint):
    def test_samples_disturb_nothing(self):
        for ranks, flags in ((1, []), (2, ['--exchange', 'collective'])):
            undisturbed = self.train(ranks, DROPOUT, flags)
            sampled = self.train(ranks, DROPOUT, flags, '--sample-every', '5')
            self.assertEqual(sampled.checksum, undisturbed.checksum)
            self.assertEqual(len(re.findall(r'(?m)^(?:\[rank 0\] )?sample: ".{16}.*"$', sampled.output)), 4,
                             str(sampled))
            self.assertNotIn('[rank 1] sample', sampled.output)
            if ranks > 1:
                continue
            self.assertEqual([line for line in sampled.lines if 'sample' in line],
                             [line for line in self.train(ranks, DROPOUT, flags, '--sample-every', '5').lines
                              if 'sample' in line])


class Generate(Checkpoint):
    def generate(self, *arguments, **how):
        return self.succeed(program('elixir-generate'), *arguments, **how).output

    def test_a_prompt_is_continued_from_the_newest_checkpoint(self):
        self.saved('--dtype', 'bf16')
        greedy = ['--prompt', 'def f(', '--length', '12', '--temperature', '0']
        text = self.generate(self.at(20), greedy)
        self.assertTrue(text.startswith('def f('), text)
        for flags in ([], ['--rcache-blocks', '2'], ['--chunk-numel', '400000'], ['--seed', '9'], ['--top-k', '3']):
            self.assertEqual(self.generate(self.checkpoints, greedy, flags), text, flags)
        for dtype in ('fp16', 'fp32'):
            self.generate(self.at(20), greedy, '--dtype', dtype)
        drawn = ['--prompt', 'def f(', '--length', '30', '--temperature', '2']
        self.assertEqual(self.generate(self.at(20), drawn), self.generate(self.at(20), drawn))
        self.assertNotEqual(self.generate(self.at(20), drawn), self.generate(self.at(20), drawn, '--seed', '2'))
        text.encode('utf-8')
        for given in ('nan', 'inf', '-1', '1001'):
            finished = self.run_program(program('elixir-generate'), self.at(20), greedy[:2], '--temperature', given)
            self.assertEqual(finished.exit_code, 2, str(finished))
            self.assertIn(f'from 0 to 1000, but {given} was given', finished.errors)

    def test_of_a_prompt_beyond_the_context_the_end_is_seen_and_it_is_said(self):
        self.saved()
        how = ['--length', '8', '--temperature', '0']
        seen = ''.join(chr(ord('a') + i % 26) for i in range(128))
        short = self.succeed(program('elixir-generate'), self.at(20), '--prompt', seen, how)
        self.assertIn('the prompt has 128 tokens and 8 are added, and gpt2-nano sees 128 at a time: from added token 2 '
                      'on the first ones are left out', short.errors)
        fits = self.succeed(program('elixir-generate'), self.at(20), '--prompt', seen[7:], how)
        self.assertNotIn('left out', fits.errors)
        longer = self.succeed(program('elixir-generate'), self.at(20), '--prompt', 'def ' + seen, how)
        self.assertIn('the prompt has 132 tokens, and gpt2-nano sees 128 at a time: its first 4 are left out',
                      longer.errors)
        self.assertEqual(longer.output, 'def ' + short.output)

    def test_tokens_that_are_no_bytes_are_numbers(self):
        config = os.path.join(self.folder, 'config.json')
        with open(config, 'w', encoding='utf-8') as file:
            json.dump({'model_type': 'qwen2', 'vocab_size': 300, 'hidden_size': 32, 'intermediate_size': 64,
                       'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
                       'max_position_embeddings': 64, 'tie_word_embeddings': True}, file)
        self.saved('--config', config, *TEXT, '--bytes', '--lr', '1e-3')
        output = self.generate(self.at(20), '--tokens', '1,299,3', '--length', '4')
        self.assertRegex(output, r'^1,299,3(,\d+){4}\n$')
        for exit_code, text, arguments in (
                (2, '--tokens 1,2,3', ['--prompt', 'text']),
                (2, 'from 0 to 299', ['--tokens', '300']),
                (2, '--prompt', []),
                (2, 'give one of them', ['--tokens', '1', '--prompt', 'x'])):
            finished = self.run_program(program('elixir-generate'), self.at(20), arguments)
            self.assertEqual(finished.exit_code, exit_code, str(finished))
            self.assertIn(text, finished.errors)

    def test_what_is_no_model_is_refused(self):
        none = os.path.join(self.folder, 'none')
        for path in (none, self.folder):
            finished = self.run_program(program('elixir-generate'), path, '--prompt', 'x')
            self.assertEqual(finished.exit_code, 4, str(finished))
            self.assertIn(path, finished.errors)

    @unittest.skipIf(os.geteuid() == 0 and shutil.which('setpriv') is None, 'root may read everywhere')
    def test_a_folder_that_may_not_be_read_is_not_called_missing(self):
        closed = os.path.join(self.folder, 'closed')
        os.makedirs(os.path.join(closed, 'model'))
        os.chmod(closed, 0)
        nobody = ['setpriv', '--reuid=65534', '--clear-groups'] if os.geteuid() == 0 else []
        finished = self.run_program(nobody, program('elixir-generate'), os.path.join(closed, 'model'), '--prompt', 'x')
        os.chmod(closed, 0o755)
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn('Permission denied', finished.errors)


if __name__ == '__main__':
    harness.main()
