"""Checkpoints as elixir-train writes and takes them, each flag once. What a start finds in a folder is for
models/run_start_test.cpp; what a save and a load do to a run for client/resume_test.cpp."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness
from checkpoint_run import (DROPOUT, MODEL, OPTIMIZER, STEPS, TRAIN, Checkpoint, contents, name_of, replace_file,
                            step_names, xxh3)
from harness import TEXT, TINY, program, text_of, wait_until

# Signals within five seconds are one.
ONE_SIGNAL_S = 5.5


class Resume(Checkpoint):
    def test_a_resumed_run_has_the_bits_of_an_undisturbed_one_by_the_random_numbers_of_each_rank(self):
        flags = [DROPOUT, '--accumulate', '2', '--clip-norm', '0.5']
        undisturbed = self.saved(flags)
        self.assertEqual(step_names(self.checkpoints), [name_of(step) for step in (8, 16, 20)])
        resumed = self.train(1, flags, '--resume', self.at(8))
        self.assertEqual(resumed.checksum, undisturbed.checksum, str(resumed))
        self.assertIn(', step 8, as --resume says', resumed.output)
        self.assertIn('step 20/20,', resumed.output)
        self.assertNotIn('step 8/20,', resumed.output)
        self.assertNotRegex(resumed.all_text, 'resumed_otherwise|other_hyperparameters|random_numbers')
        two = self.train(2, flags, '--resume', self.at(8))
        self.assertRegex(two.all_text, r'random_numbers rank=1 .*dropout gets a new seed')
        self.assertIn('resumed_otherwise text="ranks was 1 and is 2"', two.all_text)
        self.assertNotIn('random_numbers', self.train(2, '--resume', self.at(8)).all_text)
        # The control: the bits do depend on what is kept for a rank.
        with open(os.path.join(self.at(16), 'user', 'rank-0.bin'), 'rb') as file:
            replace_file(self.at(8), 'user/rank-0.bin', file.read())
        self.assertNotEqual(self.train(1, flags, '--resume', self.at(8)).checksum, undisturbed.checksum)

    def test_latest_of_a_run_that_has_ended_is_its_end(self):
        path = os.path.join(self.folder, 'steps.jsonl')
        whole = self.saved('--resume', 'latest', '--jsonl', path)  # a loop's first time
        self.assertIn(f'no checkpoint in {self.checkpoints} yet', whole.output)
        lines = [json.loads(line) for line in text_of(path).splitlines()]
        self.assertIsNone(lines[6]['saved_step'])
        self.assertIn(8, [line['saved_step'] for line in lines])
        self.assertTrue(all(line['save_stall_ms'] >= 0 for line in lines if line['saved_step']))
        again = self.saved('--resume', 'latest')
        self.assertEqual(again.checksum, whole.checksum)
        self.assertNotIn('saving ', again.output)
        self.assertIn('done: nothing was left to do: the run has made its 20 steps already', again.output)
        self.assertNotIn('first_loss', again.output)
        other = self.run_program(TRAIN, TINY, '--steps', '10', '--checkpoints', self.checkpoints, '--resume',
                                 'latest')
        self.assertEqual(other.exit_code, 2, str(other))
        self.assertIn('the run has made 20 already', other.errors)
        # Elsewhere it is written though no step was left.
        elsewhere = os.path.join(self.folder, 'elsewhere')
        self.train(1, '--resume', self.at(20), '--checkpoints', elsewhere)
        self.assertEqual(step_names(elsewhere), [name_of(20)])
        self.assertEqual(contents(os.path.join(elsewhere, name_of(20)))[MODEL], contents(self.at(20))[MODEL])

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
        self.assertEqual(self.left(), [name_of(40), name_of(60)])


class Damaged(Checkpoint):
    """Damage that shows only while a checkpoint is loaded: --resume latest goes on from an older one, on all
    ranks, and says why."""

    def damage(self, step, name):
        """One bit in the midst of a file; its size stays."""
        path = os.path.join(self.at(step), name)
        with open(path, 'r+b') as file:
            file.seek(os.path.getsize(path) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def latest(self, *flags):
        return self.run_program(self.launch(2, TRAIN, flags=['--max-restarts', '1']), TINY, STEPS, '--checkpoints',
                                self.checkpoints, '--resume', 'latest', flags, limit_s=120)

    def expect_older(self, *flags):
        undisturbed = self.saved(flags, ranks=2)
        for step, name in ((20, OPTIMIZER), (16, MODEL)):
            self.damage(step, name)
        resumed = self.latest(flags)
        self.assertEqual(resumed.exit_code, 0, str(resumed))
        self.assertNotIn('starting all', resumed.errors)
        self.assertRegex(resumed.output, rf'{self.at(20)} is passed over: .*{OPTIMIZER}: .*tensors? \'state\..*damaged')
        self.assertRegex(resumed.output, rf'{self.at(16)} is passed over: .*{MODEL}: .*tensors? \'transformer\.')
        self.assertEqual(resumed.output.count(f'{self.at(20)} is passed over'), 1, str(resumed))
        self.assertRegex(resumed.output, rf'continuing from {self.at(8)}, ')
        self.assertEqual(resumed.checksum, undisturbed.checksum, str(resumed))
        # They stay, and are in the way of nothing: the run has saved its end.
        self.assertEqual(self.left(), ['damaged-step-000000016', 'damaged-step-000000020', name_of(8), name_of(20)])
        again = self.latest(flags)
        self.assertEqual((again.exit_code, again.checksum), (0, undisturbed.checksum), str(again))
        self.assertNotIn('passed over', again.output)

    def test_all_ranks_go_on_from_the_next_older(self):
        self.expect_older('--dtype', 'bf16')

    def test_ranks_that_read_chunks_of_their_own_do(self):
        self.expect_older('--gpu-state-share', '0.5', '--exchange', 'collective')

    def test_what_a_manifest_says_does_not_speak_to_the_terminal(self):
        self.saved()
        path = os.path.join(self.at(20), 'elixir.json')
        with open(path, 'rb') as file:
            inner = file.read().split(b'{"manifest":', 1)[1].rsplit(b',"xxh3"', 1)[0]
        inner = inner.replace(b'config.json', b'\\u001b[2J\\n\\u009b1m')
        with open(path, 'wb') as file:
            file.write(b'{"manifest":' + inner + b',"xxh3":"' + xxh3(inner).encode() + b'"}\n')
        latest = ['--checkpoints', self.checkpoints, '--resume', 'latest']  # the last: it sets the folder aside
        for command in ([program('elixirctl'), 'checkpoint', 'verify', self.at(20)],
                        [program('elixir-generate'), self.at(20), '--prompt', 'x'],
                        [TRAIN, TINY, STEPS, '--resume', self.at(20)], [TRAIN, TINY, STEPS, latest]):
            finished = self.run_program(command)
            self.assertIn('?', finished.all_text, str(command))
            self.assertNotIn('\x1b', finished.all_text)
            self.assertNotIn('\x9b', finished.all_text)


class Keeping(Checkpoint):
    def test_the_newest_stay_and_those_of_a_multiple(self):
        run = self.train(1, '--checkpoints', self.checkpoints, '--save-every', '2', '--keep', '2', '--keep-every', '8')
        self.assertEqual(step_names(self.checkpoints), [name_of(step) for step in (8, 16, 18, 20)])
        self.assertEqual(run.output.count('saving '), 10)
        self.assertEqual(len(re.findall(r'(?m)^saved \S+ in [\d.]+ s, [\d.]+ MiB, updates waited [\d.]+ ms$',
                                        run.output)), 10)
        self.assertEqual(glob.glob(os.path.join(self.checkpoints, '*.tmp*')), [])

    def test_by_time(self):
        running = self.start(TRAIN, TINY, '--steps', '1000000', '--checkpoints', self.checkpoints, '--save-minutes',
                             '0.01')
        running.wait_for_text(r'(?s)^saved .*^saved ')
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 143)

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


class Signals(Checkpoint):
    def endless(self, *flags, launch_flags=()):
        """Two ranks with dropout; a run that is 20 steps long would be over before it is asked."""
        return self.start(self.launch(2, TRAIN, flags=launch_flags), TINY, DROPOUT, '--steps', '100000', '--log-every',
                          '1', '--lr-schedule', 'constant', flags, '--checkpoints', self.checkpoints)

    def test_sigusr1_saves_and_training_goes_on(self):
        running = self.endless()
        running.wait_for_text('step 3/')
        running.signal(signal.SIGUSR1)
        running.wait_for_text(r'saved .*step-\d+ in')
        told = harness.steps_told(running)
        wait_until(lambda: harness.steps_told(running) > told + 2, 'further steps')
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 143)
        self.assertEqual(len(step_names(self.checkpoints)), 2, 'and one at the end')

    def test_sigusr1_saves_and_ends_the_run_where_that_is_asked_for(self):
        exported = os.path.join(self.folder, 'exported')
        for flags in ({'launch_flags': ['--save-signal-stops']}, {}):
            running = self.endless('--export', exported, *([] if flags else ['--stop-after-save']), **flags)
            running.wait_for_text('step 3/')
            running.signal(signal.SIGUSR1)
            finished = running.wait()
            self.assertEqual(finished.exit_code, 0, str(finished))
            self.assertRegex(finished.output, r'saved .*step-\d+ in')
            self.assertNotIn('done:', finished.output)
            names = step_names(self.checkpoints)
            self.assertEqual(len(names), 1, str(finished))
            # It was the last step of all ranks.
            steps = int(names[0].split('-')[1])
            self.assertIn(f'step {steps}/', finished.output)
            self.assertNotIn(f'step {steps + 1}/', finished.output)
            self.assertRegex(finished.output, rf'stopped: step {steps} of 100000, saved in {self.at(steps)}: .*--export '
                             rf'{exported} is for the end')
            self.assertFalse(os.path.exists(exported))
            shutil.rmtree(self.checkpoints)

    @unittest.skipIf(os.geteuid() != 0, 'only root may mount a file system')
    def test_a_run_does_not_end_by_a_save_that_failed(self):
        os.mkdir(self.checkpoints)
        mount = ['mount', '-t', 'tmpfs', 'elixir-test', self.checkpoints, '-o']
        if subprocess.run([*mount, 'size=1m'], check=False).returncode != 0:
            self.skipTest('no tmpfs can be mounted here')
        try:
            running = self.endless('--stop-after-save')
            running.wait_for_text('step 3/')
            running.signal(signal.SIGUSR1)
            running.wait_for_text(r'not_stopped step=\d+ why="its save failed"')
            self.assertEqual(step_names(self.checkpoints), [])
            told = harness.steps_told(running)
            wait_until(lambda: harness.steps_told(running) > told + 2, 'further steps')
            subprocess.run([*mount, 'remount,size=256m'], check=True)
            # cannot fail by chance: the program has counted the seconds from before on.
            time.sleep(ONE_SIGNAL_S)
            running.signal(signal.SIGUSR1)
            finished = running.wait()
            self.assertEqual(finished.exit_code, 0, str(finished))
            self.assertIn('save_failed', finished.all_text)
            self.assertEqual(len(step_names(self.checkpoints)), 1, str(finished))
        finally:
            subprocess.run(['umount', '-l', self.checkpoints], check=True)

    def test_sigusr1_without_a_folder_changes_nothing(self):
        running = self.start(TRAIN, TINY, '--steps', '1000000', '--log-every', '1')
        running.wait_for_text('step 3/')
        running.signal(signal.SIGUSR1)
        running.wait_for_text('save_asked .*nothing is saved without --checkpoints')
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 143)


class Beginnings(Checkpoint):
    """What --init, --resume, --checkpoints and --export are given."""

    def test_what_is_none_anothers_or_there_already_is_refused_before_anything_starts(self):
        self.saved()
        before = contents(self.checkpoints)
        none, link = (os.path.join(self.folder, name) for name in ('none', 'link'))
        os.symlink('nowhere', link)
        into = ['--checkpoints', self.checkpoints]
        for exit_code, text, flags in (
                (4, 'it is not a checkpoint', ['--resume', none]),
                (4, 'this folder does not exist', [*TEXT, '--init', none]),
                (4, 'holds another model (gpt2-nano) than opt-nano', ['--model', 'opt-nano', '--resume', self.at(8)]),
                (4, 'number of layers is 4 and not 3', ['--model', 'nano', '--layers', '3', *TEXT, '--init', self.at(8)]),
                (4, 'needs something to be trained on', ['--init', self.at(8)]),
                (4, 'another model', ['--model', 'llama-nano', *into, '--resume', 'latest']),
                (2, '--resume latest', into),
                (2, 'nothing is overwritten', [*into, '--resume', self.at(8)]),
                (2, 'nothing is overwritten', ['--export', self.at(8)]),
                (2, 'nothing is overwritten', ['--export', link]),
                (2, link, ['--checkpoints', link]),
                (2, 'it is missing', ['--export', os.path.join(none, 'such/name')]),
                (2, 'inside of --checkpoints', [*into, '--export', os.path.join(self.checkpoints, 'exported')])):
            with self.subTest(flags=flags):
                finished = self.run_program(TRAIN, TINY, '--steps', '3', flags)
                self.assertEqual(finished.exit_code, exit_code, str(finished))
                self.assertIn(text, finished.errors)
                self.assertNotIn('step 1/', finished.output)
                self.assertEqual(finished.errors.count('elixir-train: '), 1, str(finished))
        self.assertTrue(contents(self.checkpoints) == before)  # megabytes: no difference is printed

    def test_a_plain_folder_begins_with_its_weights_and_its_model(self):
        exported = os.path.join(self.folder, 'exported')
        self.train(1, '--model', 'llama-nano', '--export', exported)
        os.remove(os.path.join(exported, 'elixir.json'))  # as transformers writes it
        with open(os.path.join(exported, 'tokenizer.json'), 'w', encoding='utf-8') as file:
            file.write('{"mine": 1}')
        begun = self.train(1, '--init', exported, *TEXT, '--bytes', '--lr', '1e-3', '--checkpoints', self.checkpoints)
        self.assertIn('step 1/20', begun.output)
        saved = contents(self.at(20))
        self.assertEqual(saved['tokenizer.json'], b'{"mine": 1}')
        self.assertEqual(json.loads(saved['config.json'])['model_type'], 'llama')
        # A checkpoint's weights alone are the same beginning.
        self.train(1, '--model', 'llama-nano', '--checkpoints', self.checkpoints + '-2')
        other = self.train(1, '--init', os.path.join(self.checkpoints + '-2', name_of(20)), *TEXT, '--lr', '1e-3')
        self.assertEqual(other.checksum, begun.checksum)

    def test_each_field_of_a_config_json_is_used_refused_or_named(self):
        self.assertNotIn('config_fields', self.saved().errors)
        folder, wrong = os.path.join(self.folder, 'model'), os.path.join(self.folder, 'wrong.json')
        shutil.copytree(self.at(20), folder)
        os.remove(os.path.join(folder, 'elixir.json'))  # somebody's: the manifest has the size of config.json
        path = os.path.join(folder, 'config.json')
        config = json.loads(text_of(path))
        for name, more in ((path, {'resid_pdrop': 0.1, 'odd': 1}), (wrong, {'activation_function': 'relu'})):
            with open(name, 'w', encoding='utf-8') as file:
                json.dump({**config, **more}, file)
        line = f'{path}: Elixir does not use these fields: odd, resid_pdrop. '
        for number, flag in enumerate(('--config', '--init')):
            self.checkpoints = os.path.join(self.folder, f'runs-{number}')
            self.assertIn(line, self.saved(flag, folder, *TEXT, '--lr', '1e-3').errors)
        machine = ['--machine', os.path.join(harness.REPOSITORY, 'examples', 'machines', 'h100.json')]
        ctl = program('elixirctl')
        for words in ([ctl, 'estimate'], [ctl, 'profile'], [ctl, 'plan', *machine]):
            self.assertIn(f'elixirctl: {line}', self.succeed(*words, '--config', folder).errors)
        why = "'activation_function' is \"relu\": Elixir's models do not compute this"
        for words in ([ctl, 'estimate'], [ctl, 'profile'], [ctl, 'plan', *machine], [TRAIN, *TEXT, '--lr', '1e-3']):
            refused = self.run_program(*words, '--config', wrong)
            self.assertEqual(refused.exit_code, 4, str(refused))
            self.assertIn(why, refused.errors)


if __name__ == '__main__':
    harness.main()
