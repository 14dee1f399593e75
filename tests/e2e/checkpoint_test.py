"""Checkpoints as elixir-train writes them: a run that goes on from one has the bits of one that was
never disturbed."""

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
from checkpoint_run import DROPOUT, STEPS, TRAIN, Checkpoint, name_of, replace_file, step_names
from harness import TINY, text_of, wait_until

# Signals within five seconds are one.
ONE_SIGNAL_S = 5.5

class Resume(Checkpoint):
    def expect_undisturbed(self, ranks, *flags):
        """Saving changes no bit, and neither does going on from the midst of the run."""
        undisturbed = self.train(ranks, flags)
        whole = self.saved(flags, ranks=ranks)
        self.assertEqual(whole.checksum, undisturbed.checksum, str(whole))
        self.assertEqual(step_names(self.checkpoints), [name_of(step) for step in (8, 16, 20)])
        for step in (8, 16):
            resumed = self.train(ranks, flags, '--resume', self.at(step))
            self.assertIn(f'of step {step}', resumed.output)
            self.assertIn('step 20/20 ', resumed.output)
            self.assertNotIn(f'step {step}/20 ', resumed.output)
            self.assertEqual(resumed.checksum, undisturbed.checksum, str(resumed))
            self.assertNotIn('resumed_otherwise', resumed.all_text)
            self.assertNotIn('other_hyperparameters', resumed.all_text)
        shutil.rmtree(self.checkpoints)

    def test_one_rank_in_fp32_with_dropout(self):
        self.expect_undisturbed(1, DROPOUT)

    def test_one_rank_in_bf16_with_several_passes_and_clipping(self):
        self.expect_undisturbed(1, DROPOUT, '--dtype', 'bf16', '--accumulate', '2', '--clip-norm', '0.5')

    def test_two_ranks_in_bf16_with_dropout(self):
        self.expect_undisturbed(2, DROPOUT, '--dtype', 'bf16')

    def test_two_ranks_by_collectives_in_fp16_with_a_loss_scale_that_adapts(self):
        self.expect_undisturbed(2, DROPOUT, '--dtype', 'fp16', '--exchange', 'collective')

    def test_states_on_the_device(self):
        self.expect_undisturbed(1, DROPOUT, '--dtype', 'bf16', '--gpu-state-share', '0.5')

    def test_another_layout_and_number_of_ranks_go_on_alike(self):
        flags = ['--dtype', 'bf16', '--accumulate', '2']
        undisturbed = self.train(1, flags)
        self.saved(flags)
        resumed = self.train(1, flags, '--resume', self.at(8), '--chunk-numel', '300000', '--rcache-blocks', '3',
                             '--workers', '1')
        self.assertEqual(resumed.checksum, undisturbed.checksum)
        # The same rows on two ranks: equal to the last bit in which a sum of two gradients differs.
        two = self.train(2, '--dtype', 'bf16', '--resume', self.at(8))
        self.assertIn('accumulate was 2 and is 1', two.all_text)
        self.assertIn('ranks was 1 and is 2', two.all_text)
        last = [float(re.search(r'last_loss ([\d.]+)', run.output).group(1)) for run in (two, resumed)]
        self.assertLess(abs(last[0] - last[1]), 0.02)

    def test_a_rank_without_random_numbers_seeds_anew_and_says_so(self):
        self.saved(DROPOUT)
        two = self.train(2, DROPOUT, '--resume', self.at(8))
        self.assertRegex(two.all_text, r'random_numbers rank=1 .*dropout is seeded anew')
        without = self.train(2, '--resume', self.at(8))
        self.assertNotIn('random_numbers', without.all_text)

    def test_random_numbers_that_are_not_the_checkpoints_show(self):
        """The control: the bits do depend on what is kept for a rank."""
        undisturbed = self.saved(DROPOUT)
        plain = self.train(1)
        with open(os.path.join(self.at(16), 'user', 'rank-0.bin'), 'rb') as file:
            replace_file(self.at(8), 'user/rank-0.bin', file.read())
        resumed = self.train(1, DROPOUT, '--resume', self.at(8))
        self.assertNotEqual(resumed.checksum, undisturbed.checksum)
        shutil.rmtree(self.checkpoints)
        self.saved()
        with open(os.path.join(self.at(16), 'user', 'rank-0.bin'), 'rb') as file:
            replace_file(self.at(8), 'user/rank-0.bin', file.read())
        self.assertEqual(self.train(1, '--resume', self.at(8)).checksum, plain.checksum)

    def test_latest_goes_on_and_says_which_and_why_others_do_not(self):
        undisturbed = self.saved(DROPOUT)
        os.remove(os.path.join(self.at(20), 'elixir.json'))
        os.remove(os.path.join(self.at(16), 'config.json'))
        resumed = self.run_program(TRAIN, TINY, STEPS, DROPOUT, '--checkpoints', self.checkpoints, '--resume',
                                   'latest')
        self.assertRegex(resumed.output, rf'(?m)^{self.at(20)} is passed over: ')
        self.assertRegex(resumed.output, rf'(?m)^{self.at(16)} is passed over: .*config.json')
        self.assertRegex(resumed.output, rf'(?m)^going on from {self.at(8)}, ')
        self.assertEqual(resumed.checksum, undisturbed.checksum)
        # They are kept under other names, and in the way of no save.
        self.assertEqual(resumed.exit_code, 0, str(resumed))
        self.assertIn('elixir.json', os.listdir(self.at(20)))
        for step in (16, 20):
            aside = os.path.join(self.checkpoints, 'damaged-' + name_of(step))
            self.assertIn(f'{self.at(step)} is called {aside} from now on', resumed.output)
        self.assertNotIn('elixir.json', os.listdir(aside))

    def test_latest_of_a_run_that_has_ended_is_its_end(self):
        whole = self.saved('--resume', 'latest')  # a loop's first time
        self.assertIn(f'no checkpoint in {self.checkpoints} yet', whole.output)
        again = self.saved('--resume', 'latest')
        self.assertEqual(again.checksum, whole.checksum)
        self.assertNotIn('saving ', again.output)
        other = self.run_program(TRAIN, TINY, '--steps', '10', '--checkpoints', self.checkpoints, '--resume',
                                 'latest')
        self.assertEqual(other.exit_code, 2, str(other))
        self.assertIn('the run has made 20 already', other.errors)

    def test_jsonl_goes_on_and_tells_of_checkpoints(self):
        path = os.path.join(self.folder, 'steps.jsonl')
        self.saved('--jsonl', path)
        for step in (16, 20):
            shutil.rmtree(self.at(step))
        self.train(1, '--checkpoints', self.checkpoints, '--resume', 'latest', '--jsonl', path)
        lines = [json.loads(line) for line in text_of(path).splitlines()]
        self.assertEqual([line['step'] for line in lines], [*range(1, 21), *range(9, 21)])
        self.assertIsNone(lines[6]['saved_step'])
        self.assertIn(8, [line['saved_step'] for line in lines])
        self.assertTrue(all(line['save_stall_ms'] >= 0 for line in lines if line['saved_step']))


class Keeping(Checkpoint):
    def test_the_newest_stay_and_those_of_a_multiple(self):
        run = self.train(1, '--checkpoints', self.checkpoints, '--save-every', '2', '--keep', '2', '--keep-every', '8')
        self.assertEqual(step_names(self.checkpoints), [name_of(step) for step in (8, 16, 18, 20)])
        self.assertEqual(run.output.count('saving '), 10)
        self.assertEqual(len(re.findall(r'(?m)^saved \S+ in [\d.]+ s, [\d.]+ MiB, updates waited [\d.]+ ms$',
                                        run.output)), 10)
        self.assertEqual(glob.glob(os.path.join(self.checkpoints, '*.tmp*')), [])

    def test_all_stay_when_told(self):
        self.train(1, '--checkpoints', self.checkpoints, '--save-every', '4', '--keep', '0')
        self.assertEqual(len(step_names(self.checkpoints)), 5)

    def test_by_time(self):
        running = self.start(TRAIN, TINY, '--steps', '1000000', '--checkpoints', self.checkpoints, '--save-minutes',
                             '0.01')
        running.wait_for_text(r'(?s)^saved .*^saved ')
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 143)


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
        self.assertEqual(len(step_names(self.checkpoints)), 1)

    def test_sigusr1_saves_and_ends_the_run_where_that_is_asked_for(self):
        for flags in ({'launch_flags': ['--save-signal-stops']}, {}):
            running = self.endless(*([] if flags else ['--stop-after-save']), **flags)
            running.wait_for_text('step 3/')
            running.signal(signal.SIGUSR1)
            finished = running.wait()
            self.assertEqual(finished.exit_code, 0, str(finished))
            self.assertRegex(finished.output, r'saved .*step-\d+ in')
            self.assertRegex(finished.output, r'done: .* steps \d+ ')
            names = step_names(self.checkpoints)
            self.assertEqual(len(names), 1, str(finished))
            # It was the last step of all ranks.
            steps = int(names[0].split('-')[1])
            self.assertIn(f'step {steps}/', finished.output)
            self.assertNotIn(f'step {steps + 1}/', finished.output)
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
        running.wait_for_text('save_asked .*none without --checkpoints')
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 143)


if __name__ == '__main__':
    harness.main()
