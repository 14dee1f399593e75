"""python -m elixir.tokenize and elixir.generate: what they write, stream and say of what is wrong."""

import contextlib
import io
import itertools
import json
import os
import struct
import subprocess
import sys
import unittest
from unittest import mock

import python_case
from python_case import BUILD, HERE, PythonCase, examples, small_model, trained

python_case.need('transformers', 'datasets', 'peft')

import torch  # noqa: E402
import transformers  # noqa: E402
import elixir  # noqa: E402
from elixir import _texts, _tokens, generate, tokenize  # noqa: E402

PROSE = os.path.join(HERE, '..', '..', 'README.md')
PROMPT = 'Elixir trains language models'


def word_pairs(folder):
    """A tokenizer like GPT-2's, learnt from the README."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([PROSE], trainers.BpeTrainer(
        vocab_size=500, special_tokens=['<|end|>'], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='<|end|>')
    made.save_pretrained(folder)
    return made


def said_by(main, *words):
    """(exit code, standard output, standard error) of a command, in this process: transformers loads for seconds."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(list(map(str, words)))
        except SystemExit as end:  # argparse's
            code = end.code
    return code, output.getvalue(), errors.getvalue()


class ToolsCase(PythonCase):
    def setUp(self):
        super().setUp()
        self.model = self.path('model')
        self.tokenizer = word_pairs(self.model)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), 'wb') as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)['input_ids']


class Tokenize(ToolsCase):
    def tokens_in(self, path):
        with open(path, 'rb') as file:
            magic, version, header, kind, vocabulary, count = struct.unpack('<8sII16sQQ16x', file.read(64))
            self.assertEqual((magic, version, header, kind.rstrip(b'\0'), vocabulary),
                             (b'ELXTOKEN', 1, 64, b'uint16', len(self.tokenizer)))
            tokens = struct.unpack(f'<{count}H', file.read())
        return list(tokens)

    def tokenized(self, *words):
        code, output, errors = said_by(tokenize.main, self.model, *words, self.path('out.tokens'))
        self.assertEqual(code, 0, errors)
        self.assertIn('out.tokens: ', output)
        return self.tokens_in(self.path('out.tokens'))

    def test_files_and_lines_are_tokenised_each_by_itself(self):
        first, second = self.write('a.txt', '\ufeffA text\nof two lines'), self.write('b', 'x')
        rows = [{'body': 'in a row', 'text': 'other'}, {'body': ''}, {'body': 'GPUs \u00e9 \U0001f600'},
                {'body': 'a' * 5000}]
        lines = self.write('rows.jsonl', '\n\n'.join(map(json.dumps, rows)))
        texts = ['A text\nof two lines', 'x', *(row['body'] for row in rows)]
        end = self.tokenizer.eos_token_id
        for behind, flags in ([], ()), ([end], ('--document-end',)):
            expected = [token for text in texts for token in [*self.ids(text), *behind]]
            self.assertEqual(self.tokenized(first, second, lines, '--field', 'body', *flags), expected)
        os.rename(lines, self.path('rows'))
        self.assertEqual(self.tokenized('--json-lines', '--field=body', self.path('rows')),
                         [token for row in rows for token in self.ids(row['body'])])
        made = tokenize.tokenize(self.tokenizer, second, self.path('c.tokens'))
        self.assertEqual(made, {'path': self.path('c.tokens'), 'tokens': 1, 'type': 'uint16',
                                'vocabulary': len(self.tokenizer)})

    def test_long_documents_have_the_tokens_of_the_whole(self):
        with open(PROSE, encoding='utf-8') as file:
            text = file.read()
        lines = self.write('rows.jsonl', json.dumps({'text': text}) + '\n' + json.dumps({'text': 'end'}))
        with mock.patch.multiple(_tokens, AROUND_CHARS=200), mock.patch.object(_texts, 'PART_CHARS', 2000):
            self.assertEqual(self.tokenized(lines, PROSE), self.ids(text) + self.ids('end') + self.ids(text))

    def test_standard_input_in_a_process_that_elixir_train_reads(self):
        out = self.path('out.tokens')
        with open(PROSE, encoding='utf-8') as file:
            text = file.read()
        environment = {**os.environ, 'PYTHONPATH': os.path.join(BUILD, 'python')}
        done = subprocess.run([sys.executable, '-m', 'elixir.tokenize', self.model, '-', out], input=text,
                              capture_output=True, text=True, check=False, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.tokens_in(out), self.ids(text))
        small_model('llama', vocab_size=len(self.tokenizer)).save_pretrained(self.model)
        trains = os.path.join(BUILD, 'bin', 'elixir-train')
        if not os.path.exists(trains):
            self.skipTest(f'{trains} is not built')
        done = subprocess.run([trains, '--init', self.model, '--data', out, '--steps', '1', '--batch', '1', '--seq',
                               '16', '--device', 'cpu'], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_data_sets(self):
        import datasets
        rows = [f'row {i} of a data set' for i in range(1500)]  # more than one batch
        expected = [token for row in rows for token in self.ids(row)]
        made = datasets.Dataset.from_dict({'body': rows, 'number': list(range(1500))})
        os.mkdir(self.path('files'))
        made.to_parquet(self.path('files', 'part.parquet'))
        made.save_to_disk(self.path('saved'))
        datasets.DatasetDict({'train': made.select(range(2)), 'test': made}).save_to_disk(self.path('splits'))
        cache = mock.patch.object(datasets.config, 'HF_DATASETS_CACHE', self.path('cache'))
        with cache:
            for name, *flags in (('files',), ('saved',), ('splits', '--split', 'test')):
                self.assertEqual(self.tokenized('--field', 'body', '--dataset', self.path(name), *flags), expected)
        for says, words in (
                ("row 0 has no field 'text'; name the one with the text: --field NAME (its fields: 'body', 'number')",
                 ('saved',)),
                ("row 0: field 'number' is no text (int)", ('saved', '--field', 'number')),
                ("it has no split 'nope'; name one with --split (train, test)", ('splits', '--split', 'nope')),
                ('none: it cannot be opened', ('none',))):
            code, _, errors = said_by(tokenize.main, self.model, self.path('new'), '--dataset', self.path(words[0]),
                                      *words[1:])
            self.assertEqual((code, says in errors), (4, True), errors)

    def test_documents_are_taken_as_they_are_written(self):
        taken = itertools.count()

        def endless():
            for number in taken:
                yield _texts.Document(f'row {number}', ('a text',), True)
        found = list(itertools.islice(_tokens.ids_of_documents(self.tokenizer, endless()), 2 * 2500))
        self.assertEqual(found[0], ('row 0', self.ids('a text')))
        self.assertEqual(found[-1], ('row 2499', None))
        self.assertLessEqual(next(taken), 2500 + _tokens.BATCH_DOCUMENTS)

    def test_it_tells_how_far_it_is(self):
        text = self.write('a.txt', 'a text')
        _, _, errors = said_by(tokenize.main, self.model, text, self.path('out.tokens'))
        self.assertEqual(errors, '')
        with mock.patch.object(tokenize, 'PROGRESS_EVERY_S', 0):
            _, _, errors = said_by(tokenize.main, self.model, text, self.path('out.tokens'))
        self.assertRegex(errors.splitlines()[0], r'^elixir.tokenize: .*a.txt: \d+ tokens, [\d,]+ per second$')

    def test_a_failure_keeps_the_older_file(self):
        out, text = self.path('out.tokens'), self.write('a.txt', 'a text')
        self.assertEqual(self.tokenized(text), self.ids('a text'))
        for words in ([text, self.write('bad.jsonl', '{"text": "x"}\n{')], [text, self.path('none')]):
            self.assertEqual(said_by(tokenize.main, self.model, *words, out)[0], 4)
            self.assertEqual(self.tokens_in(out), self.ids('a text'))
        full = OSError(28, 'No space left on device', out)
        with mock.patch.object(_tokens.TokenWriter, 'write', side_effect=full):
            code, _, errors = said_by(tokenize.main, self.model, text, out)
        self.assertEqual((code, errors), (3, f'elixir.tokenize: {out}: No space left on device\n'))
        with mock.patch.object(_tokens.TokenWriter, 'write', side_effect=KeyboardInterrupt):
            self.assertEqual(said_by(tokenize.main, self.model, text, out)[0], 130)
        self.assertEqual(self.tokens_in(out), self.ids('a text'))
        self.assertFalse(os.path.exists(out + '.part'))

    def test_what_is_wrong_is_said(self):
        out, text = self.path('out.tokens'), self.write('a.txt', 'a text')

        def rows(line):
            return self.write('rows.jsonl', line)
        for code, says, words in (
                (2, 'there is no text: give TOKENIZER TEXT... OUT, or --dataset NAME', lambda: [self.model, out]),
                (2, '--split is for --dataset', lambda: [self.model, text, out, '--split', 'x']),
                (2, '--field is for JSON lines', lambda: [self.model, text, out, '--field', 'x']),
                (2, 'standard input ("-") can be read once', lambda: [self.model, '-', '-', out]),
                (2, 'the token file cannot be standard output', lambda: [self.model, text, '-']),
                (4, 'org/name: no such folder, and no such tokenizer in the hub\'s cache; download the model first, as '
                    'with\n  hf download org/name --local-dir MODEL', lambda: ['org/name', text, out]),
                (4, 'line 2 is not JSON (', lambda: [self.model, rows('{"text": "a"}\nnull,'), out]),
                (4, 'line 1 is no JSON object such as {"text": "..."}', lambda: [self.model, rows('["a"]'), out]),
                (4, 'line 1 is not UTF-8', lambda: [self.model, rows(b'{"text": "\xff"}'), out]),
                (4, 'line 1 is not JSON (maximum recursion', lambda: [self.model, rows('[' * 100000), out]),
                (4, 'half a surrogate pair at character 1', lambda: [self.model, rows('{"text": "a\\ud800"}'), out]),
                (4, "line 1 has no field 'text'; name the one with the text: --field NAME (its fields: 'b')",
                 lambda: [self.model, rows('{"b": "a"}'), out]),
                (4, "field 'text' is no text (NoneType)", lambda: [self.model, rows('{"text": null}'), out]),
                (4, 'give its folder with --dataset', lambda: [self.model, self.write('a.parquet', 'PAR1'), out]),
                (4, 'no token in it', lambda: [self.model, self.write('empty', ''), out, '--document-end'])):
            with self.subTest(says):
                ended, _, errors = said_by(tokenize.main, *words())
                self.assertEqual((ended, errors.startswith('elixir.tokenize: ')), (code, True), errors)
                self.assertIn(says, errors)
                self.assertFalse(os.path.exists(out))
        for package, flags in ('transformers', [text]), ('datasets', ['--dataset', 'x']):
            with mock.patch.dict(sys.modules, {package: None}):
                code, _, errors = said_by(tokenize.main, self.model, *flags, out)
                self.assertEqual(code, 5, errors)
                self.assertIn(f'install it: pip install {package}\n', errors)
        code, helped, _ = said_by(tokenize.main, '--help')
        self.assertEqual(code, 0)
        self.assertIn('python -m elixir.tokenize Qwen3-0.6B book.txt book.tokens', helped)


class Generate(ToolsCase):
    def setUp(self):
        super().setUp()
        self.built = small_model('llama', vocab_size=len(self.tokenizer))
        self.built.save_pretrained(self.model)
        self.likeliest = self.expected(self.built)

    def expected(self, model, count=12):
        inputs = self.tokenizer(PROMPT, return_tensors='pt')
        ids = model.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=0)
        return self.tokenizer.decode(ids[0], skip_special_tokens=True)

    def generated(self, folder, *words, count=12, code=0):
        ended, output, errors = said_by(generate.main, folder, PROMPT, '--max-tokens', count, *words)
        self.assertEqual(ended, code, errors)
        return output if code == 0 else errors

    def test_the_likeliest_tokens_are_those_of_transformers(self):
        shown = self.generated(self.model, '--temperature', 0)
        self.assertEqual(shown, generate.printable(self.likeliest) + '\n')
        pieces = []
        text = generate.generate(self.model, PROMPT, max_tokens=12, temperature=0, on_text=pieces.append)
        self.assertEqual((text, ''.join(pieces)), (self.likeliest, text))
        words = self.likeliest[len(PROMPT):].count(' ')  # they come one by one; a tokenizer of the README decides
        self.assertGreaterEqual(len(pieces), 1 + min(words, 2), 'not as it comes')
        half = self.expected(transformers.AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.bfloat16))
        shown = self.generated(self.model, '--temperature', 0, '--dtype', 'bf16')
        self.assertEqual(shown, generate.printable(half) + '\n')

    def test_weights_in_host_memory_change_no_token(self):
        for flags in (['--temperature', 0], ['--seed', 5], ['--seed', 5, '--top-k', 7, '--top-p', 0.5],
                      ['--temperature', 0, '--dtype', 'bf16']):
            with self.subTest(flags):
                self.assertEqual(self.generated(self.model, *flags, '--offload', '--rcache-blocks', 3),
                                 self.generated(self.model, *flags))
        self.assertNotEqual(self.generated(self.model, '--seed', 5), self.generated(self.model, '--seed', 6))
        state = torch.random.get_rng_state()
        generate.generate(self.model, PROMPT, max_tokens=2)
        self.assertTrue(torch.equal(torch.random.get_rng_state(), state), 'the program\'s own random numbers')

    def test_weights_that_do_not_fit_stay_in_host_memory(self):
        with mock.patch.object(generate, 'free_bytes_of', lambda device: 1 << 17), \
                mock.patch.object(elixir, 'AdamW', wraps=elixir.AdamW) as made:
            ended, output, errors = said_by(generate.main, self.model, PROMPT, '--max-tokens', 12, '--temperature', 0)
        self.assertEqual((ended, output), (0, generate.printable(self.likeliest) + '\n'), errors)
        self.assertRegex(errors, r'the weights take 0.0 GiB, and cpu has 0.0 free: they stay in host memory')
        self.assertEqual(made.call_count, 1)

    def test_a_frozen_model_is_not_trained(self):
        self.built.requires_grad_(False)
        optimizer = elixir.AdamW(self.built, gpu_memory='1GiB')  # which asks the planner where something is trained
        self.assertEqual(self.expected(self.built), self.likeliest)
        self.assertTrue(optimizer.started)
        self.assertEqual(optimizer.dtype, torch.float32)
        with self.refused('no parameter requires gradients', 'requires_grad_(True)'):
            optimizer.step()

    def test_checkpoints_of_trainer_and_of_elixir(self):
        run, data = self.path('run'), [{name: row % 300 for name, row in each.items()} for each in examples(16)]
        optimizer = elixir.AdamW(self.built, lr=1e-3)
        trained(self.built, optimizer, run, data, max_steps=10, save_strategy='steps', save_steps=5)
        expected = self.expected(self.built)
        with open(self.path('model', 'config.json'), encoding='utf-8') as file:
            elixir.save(optimizer, self.path('saved', 'step-10'), files={'config.json': file.read()})
        optimizer.release()
        self.assertNotEqual(expected, self.likeliest)
        for place in (run, os.path.join(run, 'checkpoint-10'), self.path('saved')):
            for flags in ([], ['--offload']):
                with self.subTest(place=place, flags=flags):
                    shown = self.generated(place, '--tokenizer', self.model, '--temperature', 0, *flags)
                    self.assertEqual(shown, generate.printable(expected) + '\n')
        self.assertIn('it has no tokenizer; name the folder of one with --tokenizer', self.generated(run, code=4))
        _, _, errors = said_by(generate.main, run, PROMPT, '--max-tokens', 1, '--tokenizer', self.model)
        self.assertIn(f'elixir.generate: {run}/checkpoint-10\n', errors)

    def test_an_adapter(self):
        import peft
        torch.manual_seed(3)
        adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(self.model), peft.LoraConfig(
            target_modules=['q_proj', 'v_proj'], init_lora_weights=False))
        adapted.save_pretrained(self.path('adapter'))
        shown = self.generated(self.path('adapter'), '--tokenizer', self.model, '--temperature', 0)
        self.assertEqual(shown, generate.printable(self.expected(adapted)) + '\n')
        self.assertIn('an adapter is merged first', self.generated(self.path('adapter'), '--offload', code=4))

    def test_tokens_that_are_bytes(self):
        small_model('gpt2').save_pretrained(self.path('other'))
        model = small_model('llama', vocab_size=256)
        model.save_pretrained(self.path('bytes'))
        ids = model.generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=12, do_sample=False)[0]
        expected = bytes(ids.tolist()).decode(errors='backslashreplace')
        self.assertEqual(self.generated(self.path('bytes'), '--temperature', 0), generate.printable(expected) + '\n')
        self.assertIn('it has no tokenizer', self.generated(self.path('other'), code=4))

    def test_what_is_wrong_is_said(self):
        broken = small_model('llama', vocab_size=len(self.tokenizer))
        broken.lm_head.weight.data.fill_(float('nan'))
        broken.save_pretrained(self.path('diverged'))
        os.mkdir(self.path('empty'))
        here = ['--tokenizer', self.model]
        for code, says, words in (
                (2, '--temperature -1.0: it must be from 0 to 1000', [self.model, PROMPT, '--temperature', -1]),
                (2, '--temperature nan: it must be', [self.model, PROMPT, '--temperature', 'nan']),
                (2, '--top-p 0.0: it must be above 0', [self.model, PROMPT, '--top-p', 0]),
                (2, '--top-k -1: it must be at least 0', [self.model, PROMPT, '--top-k', -1]),
                (2, '--max-tokens 0: it must be at least 1', [self.model, PROMPT, '--max-tokens', 0]),
                (2, 'the prompt is empty', [self.model, '']),
                (2, '--device tpu: give cpu, cuda or cuda:1', [self.model, PROMPT, '--device', 'tpu']),
                (2, '--rcache-blocks is for weights in host memory: add --offload', [self.model, PROMPT,
                                                                                      '--rcache-blocks', 3]),
                (2, 'compute in BF16 or FP32: add --dtype bf16', [self.model, PROMPT, '--offload', '--dtype', 'fp16']),
                (4, 'org/name: no such folder; download the model first, as with\n  hf download org/name',
                 ['org/name', 'x']),
                (4, 'it is no model, and no checkpoint is in it', [self.path('empty'), PROMPT]),
                (4, 'the model\'s outputs are not numbers (NaN)', [self.path('diverged'), PROMPT, *here]),
                (4, 'the model sees 128 at a time: shorten it', [self.model, 'x ' * 200])):
            with self.subTest(says):
                ended, _, errors = said_by(generate.main, *words)
                self.assertEqual(ended, code, errors)
                self.assertIn('elixir.generate: ' if code else '', errors)
                self.assertIn(says, errors)
        if not torch.cuda.is_available():
            self.assertIn('torch finds no GPU', self.generated(self.model, '--device', 'cuda', code=5))
        with mock.patch.dict(sys.modules, {'transformers': None}):
            self.assertIn('install it: pip install transformers\n', self.generated(self.model, code=5))
        self.assertIn('python -m elixir.generate Qwen3-0.6B', said_by(generate.main, '--help')[1])

    def test_elixir_needs_no_transformers(self):
        program = ("import sys; sys.modules.update(transformers=None, datasets=None, peft=None, accelerate=None)\n"
                   'import elixir, elixir.generate, elixir.tokenize\n'
                   "assert elixir.generate.main(['.', 'x']) == 5 and elixir.tokenize.main(['.', __file__, 'new']) == 5")
        done = subprocess.run([sys.executable, self.write('program.py', program)], capture_output=True, text=True,
                              check=False, cwd=self.folder,
                              env={**os.environ, 'PYTHONPATH': os.path.join(BUILD, 'python')})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count('pip install transformers'), 2)


if __name__ == '__main__':
    unittest.main()
