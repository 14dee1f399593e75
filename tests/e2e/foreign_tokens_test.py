"""From a Hugging Face folder with a real tokenizer and a text to a trained model that transformers opens:
scripts/tokenize_text.py, elixir-train --init, --export, from_pretrained. And token files that are none."""

import contextlib
import importlib.util
import io
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
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
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


# Texts in which a cut at any line end changes tokens of one of the tokenizers below.
LINES = ['hello world  foo, the quick\n\n\n', 'def f(x):\n        return 12345678 * x.\r\n\r\n', '漢字仮名交。\n交文章文本！\n']
# Llama 3's (tokenizer.json of meta-llama/Meta-Llama-3-8B).
LLAMA3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                r'\s*[\r\n]+|\s+(?!\S)|\s+')


def tokenizer_like(kind):
    """With the normalizer and the words of the real one, learnt from LINES."""
    learnt = {'vocab_size': 420, 'show_progress': False}
    if kind == 't5':
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(**learnt, unk_token='<unk>', special_tokens=['<unk>'])
    elif kind in ('llama2', 'gemma'):
        tokenizer = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=True))
        spaces = normalizers.Replace(' ', '▁')
        tokenizer.normalizer = spaces if kind == 'gemma' else normalizers.Sequence([normalizers.Prepend('▁'), spaces])
        # As sentencepiece learns: no token goes beyond a word.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex('\\n+|▁+[^▁\\n]*'), 'isolated')
        trainer = trainers.BpeTrainer(**learnt, special_tokens=['<unk>', *(f'<0x{i:02X}>' for i in range(256))])
    else:
        tokenizer = Tokenizer(models.BPE())
        words = pre_tokenizers.Split(Regex(LLAMA3_WORDS), 'isolated')
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if kind == 'gpt2' else (
            pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
        trainer = trainers.BpeTrainer(**learnt, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([line * 2 for line in LINES] * 20, trainer)
    if kind in ('llama2', 'gemma'):
        tokenizer.pre_tokenizer = None
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token='<unk>')


def tokenize_modules():
    """The script's modules of python/elixir, for short parts: (tokenize, _texts, _tokens)."""
    spec = importlib.util.spec_from_file_location('tokenize_text', TOKENIZE[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenize = module.tokenize_module()
    texts, tokens = tokenize._texts, tokenize._tokens
    texts.PART_CHARS, tokens.AROUND_CHARS, tokens.LONGEST_PART_CHARS = 2000, 200, 8000
    return tokenize, texts, tokens


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

    def test_tokens_of_parts_are_those_of_the_whole_text(self):
        _, texts_of, tokens_of = tokenize_modules()
        mixed = ''.join(LINES[i * i % 7 % 3] for i in range(400))
        texts = {name: self.write(name, text.encode()) for name, text in (
            ('mixed', mixed), *((f'lines-{i}', line * 400) for i, line in enumerate(LINES)))}
        for kind in ('llama2', 'gemma', 'gpt2', 'llama3', 't5'):
            tokenizer = tokenizer_like(kind)
            for name, path in texts.items():
                with self.subTest(kind=kind, text=name):
                    (document,) = texts_of.documents_of(path, 'text', json_lines=False)
                    parts = list(tokens_of.ids_by_parts(tokenizer, document))
                    with open(path, encoding='utf-8', newline='') as file:
                        whole = tokenizer(file.read(), add_special_tokens=False)['input_ids']
                    self.assertGreater(len(parts), 2)
                    self.assertTrue([i for part in parts for i in part] == whole, 'other tokens')

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
                ('are not a multiple', [*init, '--tokens-dtype', 'uint32', '--data', self.write('odd.bin', b'abc')]),
                ('JSON is not read', [*init, '--data', lines]),
                ('a vocabulary of 128256, and the model\'s is 608', [*init, '--data', other])):
            with self.subTest(flags=flags):
                run = self.train(flags)
                self.assertEqual(run.exit_code, 4, str(run))
                self.assertRegex(run.errors, says)
                self.assertNotIn('step 1/', run.output)
        self.assertEqual(self.train(*init, *TEXT, '--bytes').exit_code, 0)
        self.stop_idle_elixird()

    def tokenize(self, *words):
        """The exit code and all that is said, in this process: transformers loads for seconds."""
        said = io.StringIO()
        module, *_ = tokenize_modules()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = module.main(words)
        return code, said.getvalue()

    def test_the_tokenizer_says_what_is_wrong(self):
        damaged = self.path('damaged')
        os.mkdir(damaged)
        self.write('damaged/tokenizer.json', b'{"version": "1.0", "model": {"type": "Nope"}}')
        self.write('damaged/tokenizer_config.json', b'{"tokenizer_class": "PreTrainedTokenizerFast"}')
        late = self.write('late.txt', b'\xef\xbb\xbf' + 'é'.encode() * 3000 + b'\xe9\n')
        text, other = self.write('text.txt', b'a text\n'), self.write('other.txt', b'another\n')
        out = self.path('out.tokens')
        self.write('busy.part', b'a text, too\n')
        before = sorted(os.listdir(self.folder))
        for says, words in (
                ('no such folder, and no such .*; download', ['meta-llama/Llama-3.2-1B', text, out]),
                ('not a folder; the first argument is', [text, self.model, out]),
                ('its tokenizer cannot be loaded', [self.folder, text, out]),
                ('its tokenizer cannot be loaded', [damaged, text, out]),
                ('not UTF-8 .* at byte 6003\)', [self.model, late, out]),
                ('Break its lines', [self.model, self.write('line.txt', b'x' * 10000), out]),
                ('none: No such file', [self.model, self.path('none'), out]),
                ('no token in it', [self.model, self.write('empty.txt', b''), out]),
                ('no token in it', [self.model, self.write('mark.txt', b'\xef\xbb\xbf'), out]),
                ('it is one of the texts', [self.model, text, other, os.path.join(self.folder, '.', 'text.txt')]),
                ('is not a token file', [self.model, text, other]),
                ('is not an ordinary file', [self.model, text, damaged]),
                ('no such folder; make it', [self.model, text, self.path('none/out.tokens')]),
                ('another run may write it', [self.model, text, self.path('busy')])):
            with self.subTest(words=words):
                code, said = self.tokenize(*words)
                self.assertEqual(code, 4, said)
                self.assertRegex(said, says)
        for name in ('line.txt', 'empty.txt', 'mark.txt'):
            os.remove(self.path(name))
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        for name, held in (('text.txt', 'a text\n'), ('other.txt', 'another\n'), ('busy.part', 'a text, too\n')):
            self.assertEqual(harness.text_of(self.path(name)), held)

    def test_the_header_of_the_written_file_is_true(self):
        folder, out = self.path('words'), self.path('out.tokens')
        text = self.write('text.txt', b'\xef\xbb\xbfa b')
        for ids, kind, vocabulary in (({'a': 0, '?': 2, 'b': 700}, 'H', 701), ({'a': 0, '?': 2, 'b': 70000}, 'I', 70001)):
            words = Tokenizer(models.WordLevel(ids, unk_token='?'))
            words.pre_tokenizer = pre_tokenizers.Whitespace()
            PreTrainedTokenizerFast(tokenizer_object=words, unk_token='?').save_pretrained(folder)
            code, said = self.tokenize(folder, text, out)  # the second time in the place of an older one
            self.assertEqual(code, 0, said)
            with open(out, 'rb') as file:
                data = file.read()
            self.assertEqual(struct.unpack('<QQ', data[32:48]), (vocabulary, 2))
            self.assertEqual(struct.unpack(f'<2{kind}', data[64:]), (0, ids['b']), 'without the byte order mark')


if __name__ == '__main__':
    assert foreign_test.PYTHON
    harness.main()
