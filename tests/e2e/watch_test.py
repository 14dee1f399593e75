"""A run that a person watches: progress, details, validation loss. None of it changes a bit of the weights.
Frozen parameters keep their values, and a resumed run freezes what it froze before."""

import json
import os
import re
import struct

import harness
from checkpoint_run import MODEL, TRAIN
from harness import TINY

FIRST_BLOCK = r'^transformer\.h\.0\.'


def tensors(path):
    """name -> bytes of a safetensors file."""
    with open(path, 'rb') as file:
        header = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
        header.pop('__metadata__', None)
        data = file.read()
    return {name: data[slice(*entry['data_offsets'])] for name, entry in header.items()}


class Watch(harness.ElixirTest):
    def train(self, *flags, ranks=1, steps=4):
        return self.succeed(self.launch(ranks, TRAIN), TINY, '--steps', str(steps), '--checksum', *flags)

    def text(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(content)
        return path

    def test_progress_has_80_columns_and_details_only_on_demand(self):
        plain = self.train('--log-every', '1')
        lines = [line for line in plain.output.splitlines() if line.startswith('step ')]
        self.assertEqual(len(lines), 4)
        for number, line in enumerate(lines, 1):
            self.assertRegex(line, rf'^step {number}/4, {25 * number} %, loss \d+\.\d+, [\d.]+ s/step, '
                                   r'\d+ tokens/s, [\d:]+ left$')
            self.assertLessEqual(len(line), 80)
        verbose = self.train('--log-every', '1', '--verbose')
        self.assertRegex(verbose.output, r'(?m)^step 4/4, .* left, update .* Mparam/s, rCache hits .*, bound by ')
        self.assertEqual(verbose.checksum, plain.checksum)

    def test_validation_changes_no_bit(self):
        data = self.text('val.txt', 'for name in names: print(name)\n' * 50)
        for ranks, exchange in (1, 'host'), (2, 'host'), (2, 'collective'):
            with self.subTest(ranks=ranks, exchange=exchange):
                flags = ['--exchange', exchange, '--dropout', '0.1']
                plain = self.train(*flags, ranks=ranks)
                path = os.path.join(self.folder, f'{exchange}-{ranks}.jsonl')
                watched = self.train(*flags, '--val-data', data, '--val-every', '3', '--val-sequences', '5',
                                     '--jsonl', path, ranks=ranks)
                self.assertEqual(watched.checksum, plain.checksum)
                self.assertEqual(re.findall(r'(?m)^(?:\[rank 0\] )?validation: step (\d+), loss \d+\.\d{4}, '
                                            r'perplexity \d+\.\d\d$', watched.output), ['3', '4'])
                with open(path, encoding='utf-8') as file:
                    lines = [json.loads(line) for line in file]
                self.assertEqual([line['step'] for line in lines], [1, 2, 3, 3, 4, 4])
                losses = [line['val_loss'] for line in lines if 'val_loss' in line]
                self.assertEqual(len(losses), 2)
                self.assertLess(losses[1], losses[0])

    def test_validation_data_is_checked_with_the_rest(self):
        short = self.text('short.txt', 'short')
        finished = self.run_program(TRAIN, TINY, '--val-data', short, '--data', os.path.join(self.folder, 'gone'))
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn(f'--val-data {short}: 5 tokens', finished.errors)
        self.assertIn('gone', finished.errors)

    def test_frozen_parameters_keep_their_values(self):
        kept = {}
        for steps in 1, 3:
            path = os.path.join(self.folder, f'export-{steps}')
            self.train('--freeze', FIRST_BLOCK, '--export', path, steps=steps)
            kept[steps] = tensors(os.path.join(path, MODEL))
        frozen = [name for name in kept[1] if re.search(FIRST_BLOCK, name)]
        self.assertGreater(len(frozen), 8)
        for name, values in kept[1].items():
            self.assertEqual(values == kept[3][name], name in frozen, name)

    def test_a_resumed_run_freezes_what_it_froze(self):
        checkpoints = os.path.join(self.folder, 'checkpoints')
        whole = self.train('--freeze', FIRST_BLOCK, '--lr-schedule', 'constant')
        self.assertNotEqual(whole.checksum, self.train('--lr-schedule', 'constant').checksum)
        run = ['--lr-schedule', 'constant', '--checkpoints', checkpoints, '--resume', 'latest']
        self.train('--freeze', FIRST_BLOCK, *run, steps=2)
        other = self.run_program(TRAIN, TINY, run, '--steps', '4', '--freeze', r'^transformer\.h\.1\.')
        self.assertEqual(other.exit_code, 2, str(other))
        self.assertIn('--freeze', other.errors)
        self.assertIn(FIRST_BLOCK, other.errors)
        self.assertEqual(self.train(*run).checksum, whole.checksum)

    def test_an_expression_that_finds_nothing_or_everything_is_an_error(self):
        for expression, why in ('no such name', 'nothing is frozen'), ('.', 'nothing is left to train'):
            finished = self.run_program(TRAIN, TINY, '--freeze', expression)
            self.assertEqual(finished.exit_code, 2, str(finished))
            self.assertIn(why, finished.errors)


if __name__ == '__main__':
    harness.main()
