"""What elixir-train is given to begin with: folders that are none, another model's or in use are
refused, and nothing is overwritten; Hugging Face folders are a beginning."""

import json
import os
import shutil
import signal
import struct

import harness
from checkpoint_run import TRAIN, Checkpoint, contents, name_of, step_names
from harness import TINY, text_of

class BadInput(Checkpoint):
    def expect_refused(self, exit_code, text, *flags, **how):
        finished = self.run_program(TRAIN, TINY, '--steps', '3', flags, **how)
        self.assertEqual(finished.exit_code, exit_code, str(finished))
        self.assertIn(text, finished.errors)
        self.assertNotIn('step 1/', finished.output)
        self.assertEqual(finished.errors.count('elixir-train: '), 1, str(finished))

    def test_what_is_no_checkpoint_is_refused(self):
        none = os.path.join(self.folder, 'none')
        self.expect_refused(4, 'it is no checkpoint', '--resume', none)
        self.expect_refused(4, 'no config.json', '--init', none)
        self.expect_refused(4, 'none', '--init', none, '--model', 'nano')
        os.mkdir(none)
        self.expect_refused(4, none, '--init', none, '--model', 'nano')

    def test_another_models_is_refused_before_anything_starts(self):
        self.saved()
        before = contents(self.checkpoints)
        for flags in (['--resume', self.at(8)], ['--init', self.at(8)]):
            self.expect_refused(4, 'holds another model (gpt2-nano) than opt-nano', '--model', 'opt-nano', *flags)
            self.expect_refused(4, 'number of layers is 4 and not 3', '--model', 'nano', '--layers', '3', *flags)
        self.expect_refused(4, 'another model', '--model', 'llama-nano', '--checkpoints', self.checkpoints, '--resume',
                            'latest')
        self.assertEqual(contents(self.checkpoints), before)

    def test_nothing_is_overwritten(self):
        self.saved()
        before = contents(self.checkpoints)
        flags = ['--checkpoints', self.checkpoints, '--save-every', '2']
        self.expect_refused(2, '--resume latest', *flags)
        self.expect_refused(2, 'nothing is overwritten', *flags, '--resume', self.at(8))
        self.expect_refused(2, 'nothing is overwritten', '--export', self.at(8))
        link = os.path.join(self.folder, 'link')
        os.symlink('nowhere', link)
        self.expect_refused(2, 'nothing is overwritten', '--export', link)
        self.expect_refused(2, link, '--checkpoints', link)
        self.assertEqual(contents(self.checkpoints), before)

    def test_a_link_in_the_place_of_a_checkpoint_is_passed_over(self):
        undisturbed = self.saved()
        for step in (16, 20):
            shutil.rmtree(self.at(step))
        os.symlink(self.at(8), self.at(12))
        resumed = self.train(1, '--checkpoints', self.checkpoints, '--resume', 'latest')
        self.assertRegex(resumed.output, rf'(?m)^{self.at(12)} is passed over: ')
        self.assertEqual(resumed.checksum, undisturbed.checksum)

    def test_an_export_that_cannot_be_written_is_refused_before_anything_starts(self):
        for name, text in (('a/..', "none of '.' and '..'"), ('no/such/name', 'it is missing')):
            path = os.path.join(self.folder, name)
            self.expect_refused(2, text, '--export', path)
        self.assertFalse(os.path.exists(os.path.join(self.folder, 'a')))
        inside = os.path.join(self.checkpoints, 'exported')
        for path, text in ((self.checkpoints, 'the same folder as'), (inside, 'inside of')):
            self.expect_refused(2, f'{text} --checkpoints', '--export', path, '--checkpoints', self.checkpoints)
        self.assertFalse(os.path.exists(self.checkpoints))

    def test_what_resume_names_wrong_is_said(self):
        exported = os.path.join(self.folder, 'exported')
        self.saved('--export', exported)
        self.expect_refused(4, 'begin with its weights by --init', '--resume', exported)
        self.expect_refused(4, f'the newest valid one is {self.at(20)}', '--resume', self.checkpoints)
        self.expect_refused(4, "did you mean 'latest'?", '--resume', 'lastest')

    def test_two_jobs_do_not_write_into_one_folder(self):
        first = self.start(TRAIN, TINY, '--steps', '1000000', '--log-every', '1', '--checkpoints', self.checkpoints)
        first.wait_for_text('step 3/')
        self.expect_refused(8, self.checkpoints, '--checkpoints', self.checkpoints, '--resume', 'latest', limit_s=90)
        first.signal(signal.SIGTERM)
        self.assertEqual(first.wait().exit_code, 143)

    def test_the_second_of_two_jobs_goes_on_from_where_the_first_ends(self):
        flags = [TINY, '--steps', '60', '--checksum', '--log-every', '0', '--save-every', '20', '--keep', '2',
                 '--checkpoints', self.checkpoints, '--resume', 'latest']
        launches = [[TRAIN], [TRAIN], self.launch(2, TRAIN)]
        finished = [running.wait(limit_s=120) for running in [self.start(launch, flags) for launch in launches]]
        self.assertEqual([one.exit_code for one in finished], [0, 0, 0], str(finished))
        begun = [one for one in finished if 'the run begins' in one.output]
        self.assertEqual(len(begun), 1, str(finished))
        for one in finished:
            self.assertEqual(one.output.count('saving '), 3 if one in begun else 0, str(one))
            self.assertEqual('nothing was left to do' in one.output, one not in begun, str(one))
        self.assertEqual([name for name in sorted(os.listdir(self.checkpoints)) if not name.startswith('.')],
                         [name_of(40), name_of(60)])

    def test_one_that_is_resumed_elsewhere_is_written_there_also_where_no_step_was_left(self):
        self.saved()
        elsewhere = os.path.join(self.folder, 'elsewhere')
        self.train(1, '--resume', self.at(20), '--checkpoints', elsewhere)
        self.assertEqual(step_names(elsewhere), [name_of(20)])
        weights = 'model-00001-of-00001.safetensors'
        self.assertEqual(contents(os.path.join(elsewhere, name_of(20)))[weights], contents(self.at(20))[weights])

    def test_a_folder_that_vanishes_is_a_warning_and_the_end_fails(self):
        running = self.start(TRAIN, TINY, '--steps', '150', '--checksum', '--log-every', '1', '--checkpoints',
                             self.checkpoints, '--save-every', '50')
        running.wait_for_text('step 2/')
        os.rename(self.checkpoints, self.checkpoints + '-moved')
        finished = running.wait()
        self.assertNotEqual(finished.exit_code, 0, str(finished))
        self.assertIn('step 150/150', finished.output)
        self.assertIn('weights_xxh64', finished.output)
        self.assertGreaterEqual(finished.all_text.count('save_failed'), 2, str(finished))


class Init(Checkpoint):
    def test_a_plain_folder_begins_with_its_weights_and_its_model(self):
        exported = os.path.join(self.folder, 'exported')
        self.train(1, '--model', 'llama-nano', '--export', exported)
        os.remove(os.path.join(exported, 'elixir.json'))  # as transformers writes it
        with open(os.path.join(exported, 'tokenizer.json'), 'w', encoding='utf-8') as file:
            file.write('{"mine": 1}')
        begun = self.train(1, '--init', exported, '--lr', '1e-3', '--checkpoints', self.checkpoints)
        self.assertIn('step 1/20', begun.output)
        saved = contents(self.at(20))
        self.assertEqual(saved['tokenizer.json'], b'{"mine": 1}')
        self.assertEqual(json.loads(saved['config.json'])['model_type'], 'llama')
        # A checkpoint's weights alone are the same beginning.
        self.train(1, '--model', 'llama-nano', '--checkpoints', self.checkpoints + '-2')
        other = self.train(1, '--init', os.path.join(self.checkpoints + '-2', name_of(20)))
        self.assertEqual(other.checksum, begun.checksum)

    def test_published_gpt2_files_lack_the_prefix(self):
        exported = os.path.join(self.folder, 'exported')
        self.train(1, '--export', exported)
        expected = self.train(1, '--init', exported)
        os.remove(os.path.join(exported, 'elixir.json'))
        os.remove(os.path.join(exported, 'model.safetensors.index.json'))
        path = os.path.join(exported, 'model-00001-of-00001.safetensors')
        with open(path, 'rb') as file:
            data = file.read()
        length = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + length])
        bare = {name.removeprefix('transformer.'): entry for name, entry in header.items()}
        text = json.dumps(bare).encode()
        os.remove(path)
        with open(os.path.join(exported, 'model.safetensors'), 'wb') as file:
            file.write(struct.pack('<Q', len(text)) + text + data[8 + length:])
        self.assertEqual(self.train(1, '--init', exported).checksum, expected.checksum)

    def test_what_the_models_do_not_compute_is_refused(self):
        exported = os.path.join(self.folder, 'exported')
        self.train(1, '--export', exported)
        os.remove(os.path.join(exported, 'elixir.json'))
        path = os.path.join(exported, 'config.json')
        config = json.loads(text_of(path))
        config['activation_function'] = 'relu'
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(config, file)
        finished = self.run_program(TRAIN, TINY, '--steps', '3', '--init', exported)
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn("'activation_function' is \"relu\"", finished.errors)
        # Of drawn weights the sizes may be taken; that it is another function is said, and kept.
        self.assertNotIn('config_otherwise', self.train(1).errors)
        drawn = self.saved('--config', path, '--lr', '1e-3')
        self.assertRegex(drawn.errors, r"config_otherwise .*'activation_function' is \\?\"relu")
        kept = json.loads(text_of(os.path.join(self.at(20), 'config.json')))
        self.assertEqual(kept['activation_function'], 'gelu_new')


if __name__ == '__main__':
    harness.main()
