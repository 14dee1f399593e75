"""From a Hugging Face folder with a real tokenizer and a text to a trained model that transformers opens:
scripts/tokenize_text.py, elixir-train --init, --export, from_pretrained. And token files that are none."""

import json
import os
import re
import struct
import sys

import foreign_test  # with the Python that has transformers
import harness
import numpy
import torch
from harness import REPOSITORY, TEXT, TINY, program
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

TOKENIZE = [sys.executable, os.path.join(REPOSITORY, 'scripts', 'tokenize_text.py')]
TEXT_FILE = TEXT[1]


def byte_pairs(path, vocabulary):
    """A tokenizer like those of GPT-2 and Llama 3, learnt from the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([path], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=['<|end|>'], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='<|end|>')


class ForeignTokens(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.model = os.path.join(self.folder, 'model')
        self.tokenizer = byte_pairs(TEXT_FILE, 600)
        self.tokenizer.save_pretrained(self.model)
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=len(self.tokenizer) + 8, hidden_size=64, intermediate_size=96,
                             num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
        AutoModelForCausalLM.from_config(config).save_pretrained(self.model)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), 'wb') as file:
            file.write(data)
        return self.path(name)

    def train(self, *flags, steps=20):
        return self.run_program(program('elixir-train'), TINY, '--lr', '1e-2', '--warmup-steps', '0', '--steps',
                                str(steps), flags, limit_s=120)

    def tokenized(self):
        made = self.succeed(TOKENIZE, self.model, TEXT_FILE, self.path('text.tokens'), limit_s=120)
        self.assertRegex(made.output, r'text.tokens: \d+ tokens of uint16, vocabulary 600\n')
        return self.path('text.tokens')

    def test_a_model_with_its_own_tokenizer_is_trained_and_opened_again(self):
        tokens = self.tokenized()
        with open(TEXT_FILE, encoding='utf-8') as file:
            expected = self.tokenizer(file.read(), add_special_tokens=False)['input_ids']
        with open(tokens, 'rb') as file:
            data = file.read()
        self.assertEqual(list(struct.unpack(f'<{len(expected)}H', data[64:])), expected)
        self.assertGreater(max(expected), 256)

        trained = self.train('--init', self.model, '--data', tokens, '--export', self.path('trained'), steps=80)
        self.assertEqual(trained.exit_code, 0, str(trained))
        first, last = map(float, re.search('first_loss (.*) last_loss (.*) steps 80', trained.output).groups())
        self.assertLess(last, first - 0.3)
        model = AutoModelForCausalLM.from_pretrained(self.path('trained'))
        tokenizer = AutoTokenizer.from_pretrained(self.path('trained'))
        ids = torch.tensor([tokenizer('Options of a run')['input_ids']])
        self.assertTrue(torch.isfinite(model(ids).logits).all())
        self.assertEqual(tokenizer.decode(ids[0]), 'Options of a run')
        self.stop_idle_elixird()

    def test_every_way_to_store_tokens_trains_the_same_weights(self):
        tokens = self.tokenized()
        with open(tokens, 'rb') as file:
            ids = numpy.frombuffer(file.read()[64:], dtype='<u2')
        files = [(['--data', tokens], [])]
        for dtype in ('uint16', 'uint32', 'int32'):
            files.append((['--data', self.write(f'{dtype}.bin', ids.astype(dtype).tobytes())],
                          ['--tokens-dtype', dtype]))
        for dtype in ('uint16', 'int64'):
            numpy.save(self.path(f'{dtype}.npy'), ids.astype(dtype))
            files.append((['--data', self.path(f'{dtype}.npy')], []))
        labels = self.write('labels.bin', ids.astype('int32').tobytes())
        files.append((['--data', tokens, '--labels', labels], ['--tokens-dtype', 'int32']))
        runs = [self.train('--init', self.model, '--checksum', *data, *flags) for data, flags in files]
        self.assertEqual(len({run.checksum for run in runs}), 1, '\n'.join(map(str, runs)))
        masked = ids.astype('int32')
        masked[1::2] = -100
        self.write('labels.bin', masked.tobytes())
        run = self.train('--init', self.model, '--checksum', '--data', tokens, '--labels', labels, '--tokens-dtype',
                         'int32')
        self.assertNotEqual(run.checksum, runs[0].checksum)
        self.assertEqual(run.exit_code, 0, str(run))
        self.stop_idle_elixird()

    def test_what_would_be_trained_on_as_something_else_is_an_error(self):
        wide = self.write('wide.bin', struct.pack('<4I', 1, 2, 300, 70000) * 100)
        beyond = self.write('beyond.bin', struct.pack('<4I', 1, 2, 300, 607) * 100 + struct.pack('<I', 608))
        lines = self.write('lines.jsonl', json.dumps({'text': 'a'}).encode() * 100)
        other = self.write('other.tokens', struct.pack('<8sII16sQQ16x', b'ELXTOKEN', 1, 64, b'uint32', 128256, 400) +
                           struct.pack('<I', 1) * 400)
        uint32 = ['--tokens-dtype', 'uint32']
        init = ['--init', self.model]
        config = ['--config', os.path.join(self.model, 'config.json')]
        for says, flags in (
                ('needs something to be trained on', init),
                ('needs something to be trained on', config),
                ('its tokenizer is .*tokenizer.json', [*init, *TEXT]),
                ('its tokenizer is .*tokenizer.json', [*config, *TEXT]),
                ('say it with --tokens-dtype', [*init, '--data', wide]),
                ('token 70000 at position 3 is outside', [*init, *uint32, '--data', wide]),
                ('token 608 at position 400 is outside', [*init, *uint32, '--data', beyond]),
                ('are no multiple', [*init, '--tokens-dtype', 'uint32', '--data', self.write('odd.bin', b'abc')]),
                ('JSON is not read', [*init, '--data', lines]),
                ('a vocabulary of 128256, and the model\'s is 608', [*init, '--data', other])):
            with self.subTest(flags=flags):
                run = self.train(flags)
                self.assertEqual(run.exit_code, 4, str(run))
                self.assertRegex(run.errors, says)
                self.assertNotIn('step 1/', run.output)
        self.assertEqual(self.train(*init, *TEXT, '--bytes').exit_code, 0)
        self.stop_idle_elixird()

    def test_the_tokenizer_says_what_is_wrong(self):
        latin = self.write('latin.txt', b'caf\xe9\n')
        line = self.write('line.txt', b'x' * (5 << 20))
        out = self.path('out.tokens')
        for says, arguments in (
                ('no such folder; download', ['meta-llama/Llama-3.2-1B', TEXT_FILE, out]),
                ('its tokenizer cannot be loaded', [self.folder, TEXT_FILE, out]),
                ('not UTF-8', [self.model, latin, out]),
                ('no line end within', [self.model, line, out]),
                ('No such file', [self.model, self.path('none'), out]),
                ('no token in it', [self.model, self.write('empty.txt', b''), out])):
            with self.subTest(arguments=arguments):
                refused = self.run_program(TOKENIZE, arguments, limit_s=120)
                self.assertEqual(refused.exit_code, 2, str(refused))
                self.assertRegex(refused.errors, says)
                self.assertEqual(refused.errors.count('Traceback'), 0)
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith('out')])


if __name__ == '__main__':
    assert foreign_test.PYTHON
    harness.main()
