"""A checkpoint whose damage shows only while it is loaded: --resume latest goes on from an older one,
on all ranks, and says why. And what is said of an end that is none."""

import os
import shutil
import signal

import harness
from checkpoint_run import STEPS, TRAIN, Checkpoint, name_of, step_names, xxh3
from harness import TINY, program

MODEL = 'model-00001-of-00001.safetensors'
GENERATE = program('elixir-generate')
OPTIMIZER = 'optimizer/optimizer-00001-of-00001.safetensors'


class Damaged(Checkpoint):
    def damage(self, step, name):
        """One bit in the midst of a file; its size stays."""
        path = os.path.join(self.at(step), name)
        with open(path, 'r+b') as file:
            file.seek(os.path.getsize(path) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def latest(self, ranks, *flags):
        launch = self.launch(ranks, TRAIN, flags=['--max-restarts', '1']) if ranks > 1 else [TRAIN]
        return self.run_program(launch, TINY, STEPS, '--checkpoints', self.checkpoints, '--resume', 'latest', flags,
                                limit_s=120)

    def expect_older(self, ranks, *flags):
        undisturbed = self.saved(flags, ranks=ranks)
        for step, name in ((20, OPTIMIZER), (16, MODEL)):
            self.damage(step, name)
        resumed = self.latest(ranks, flags)
        self.assertEqual(resumed.exit_code, 0, str(resumed))
        self.assertNotIn('starting all', resumed.errors)
        self.assertRegex(resumed.output, rf'{self.at(20)} is passed over: .*{OPTIMIZER}: .*tensors? \'state\..*damaged')
        self.assertRegex(resumed.output, rf'{self.at(16)} is passed over: .*{MODEL}: .*tensors? \'transformer\.')
        self.assertEqual(resumed.output.count(f'{self.at(20)} is passed over'), 1, str(resumed))
        self.assertRegex(resumed.output, rf'going on from {self.at(8)}, ')
        self.assertEqual(resumed.checksum, undisturbed.checksum, str(resumed))
        # They stay, and are in the way of nothing: the run has saved its end.
        left = sorted(os.listdir(self.checkpoints))
        self.assertEqual([name for name in left if not name.startswith('.')],
                         ['damaged-step-000000016', 'damaged-step-000000020', name_of(8), name_of(20)])
        again = self.latest(ranks, flags)
        self.assertEqual((again.exit_code, again.checksum), (0, undisturbed.checksum), str(again))
        self.assertNotIn('passed over', again.output)

    def test_one_rank_goes_on_from_the_next_older(self):
        self.expect_older(1, '--dtype', 'bf16')

    def test_two_ranks_go_on_from_the_same(self):
        self.expect_older(2, '--dtype', 'bf16')

    def test_ranks_that_meet_by_collectives_do(self):
        self.expect_older(2, '--exchange', 'collective')

    def test_ranks_that_read_chunks_of_their_own_do(self):
        self.expect_older(2, '--gpu-state-share', '0.5', '--exchange', 'collective')

    def test_a_damaged_file_beside_the_tensors_is_passed_over(self):
        undisturbed = self.saved(ranks=2)
        shutil.rmtree(self.at(20))
        self.damage(16, 'user/rank-1.bin')
        resumed = self.latest(2)
        self.assertEqual(resumed.exit_code, 0, str(resumed))
        self.assertRegex(resumed.output, rf'{self.at(16)} is passed over: .*user/rank-1.bin')
        self.assertEqual(resumed.checksum, undisturbed.checksum)

    def test_what_is_no_checkpoint_is_not_in_the_way_of_a_save(self):
        undisturbed = self.saved()
        with open(os.path.join(self.at(20), 'elixir.json'), 'r+b') as file:
            file.truncate(100)
        for _ in range(2):
            resumed = self.latest(1)
            self.assertEqual((resumed.exit_code, resumed.checksum), (0, undisturbed.checksum), str(resumed))
        self.assertEqual([name for name in sorted(os.listdir(self.checkpoints)) if not name.startswith('.')],
                         ['damaged-step-000000020', name_of(8), name_of(16), name_of(20)])

    def test_what_a_manifest_says_does_not_speak_to_the_terminal(self):
        self.saved()
        path = os.path.join(self.at(20), 'elixir.json')
        with open(path, 'rb') as file:
            inner = file.read().split(b'{"manifest":', 1)[1].rsplit(b',"xxh3"', 1)[0]
        inner = inner.replace(b'config.json', b'\\u001b[2J\\n\\u009b1m')
        with open(path, 'wb') as file:
            file.write(b'{"manifest":' + inner + b',"xxh3":"' + xxh3(inner).encode() + b'"}\n')
        latest = ['--checkpoints', self.checkpoints, '--resume', 'latest']  # the last: it sets the folder aside
        for command in ([program('elixirctl'), 'checkpoint', 'verify', self.at(20)], [GENERATE, self.at(20), '--prompt',
                        'x'], [TRAIN, TINY, STEPS, '--resume', self.at(20)], [TRAIN, TINY, STEPS, latest]):
            finished = self.run_program(command)
            self.assertIn('?', finished.all_text, str(command))
            self.assertNotIn('\x1b', finished.all_text)
            self.assertNotIn('\x9b', finished.all_text)

    def test_where_none_is_left_the_error_names_all(self):
        self.saved()
        for step in (8, 16, 20):
            self.damage(step, MODEL)
        finished = self.latest(1)
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn('no whole checkpoint', finished.errors)
        for step in (8, 16, 20):
            self.assertIn(f'{self.at(step)}/{MODEL}', finished.errors)
            self.assertTrue(os.path.isdir(self.at(step)), 'it has its name still')
        self.assertIn('begin anew with another --checkpoints', finished.errors)


class Ends(Checkpoint):
    def test_a_run_that_is_stopped_by_its_save_says_that_nothing_was_exported(self):
        exported = os.path.join(self.folder, 'exported')
        running = self.start(TRAIN, TINY, '--steps', '1000000', '--log-every', '1', '--checkpoints', self.checkpoints,
                             '--stop-after-save', '--export', exported)
        running.wait_for_text('step 3/')
        running.signal(signal.SIGUSR1)
        finished = running.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        step = int(step_names(self.checkpoints)[0].split('-')[1])
        self.assertIn(f'stopped after step {step} of 1000000, as it was asked to: --export {exported} is for the end',
                      finished.output)
        self.assertFalse(os.path.exists(exported))

    def test_a_run_that_is_over_says_that_nothing_was_left_to_do(self):
        whole = self.saved()
        again = self.train(1, '--checkpoints', self.checkpoints, '--resume', 'latest')
        self.assertIn('nothing was left to do: the run has made its 20 steps already', again.output)
        self.assertIn('done: first_loss nan last_loss nan steps 0 ', again.output)
        self.assertNotIn('nothing was left', whole.output)

    def test_weights_that_diverge_are_no_sample_and_no_end(self):
        diverged = self.train(1, '--lr', '1e30', '--warmup-steps', '0', '--checkpoints', self.checkpoints,
                              '--sample-every', '10')
        self.assertIn("no sample: the model's outputs are not numbers", diverged.output)
        self.assertIn('step 20/20', diverged.output)
        finished = self.run_program(harness.program('elixir-generate'), self.checkpoints, '--prompt', 'x')
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn("the model's outputs are not numbers", finished.errors)

    def test_what_differs_from_the_run_before_is_said(self):
        self.saved('--clip-norm', '1')
        shutil.rmtree(self.at(20))
        resumed = self.train(1, '--checkpoints', self.checkpoints, '--resume', 'latest', '--dtype', 'bf16',
                             '--lr-schedule', 'constant', '--warmup-steps', '3')
        for text in ('lr_schedule was cosine and is constant',
                     'warmup_steps was 50 and is 3', 'clip_norm was 1.0 and is none'):
            self.assertIn(f'resumed_otherwise text="{text}"', resumed.errors)
        self.assertEqual(resumed.errors.count('resumed_otherwise'), 3, str(resumed))
        self.assertIn('other_type now=bf16 in_the_folder=fp32', resumed.errors)


if __name__ == '__main__':
    harness.main()
