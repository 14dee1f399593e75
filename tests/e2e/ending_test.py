"""How a run ends that is told to: it saves first where it has a folder, on all ranks after the same step, and its
last line says what was saved and how to continue. Signals without a folder are for tests/fault/stop_test.py."""

import os
import signal
import subprocess
import unittest

import harness
from checkpoint_run import DROPOUT, TRAIN, Checkpoint, name_of, step_names, whole_step_names
from harness import TINY, is_pending, wait_until

FLAGS = [TINY, DROPOUT, '--log-every', '1', '--lr-schedule', 'constant', '--checksum']


class Ending(Checkpoint):
    def endless(self, *flags, ranks=1, launch_flags=(), **how):
        command = self.launch(ranks, TRAIN, flags=launch_flags) if ranks > 1 else [TRAIN]
        running = self.start(command, FLAGS, '--steps', '100000', '--checkpoints', self.checkpoints, flags, **how)
        running.wait_for_text('step 3/')
        return running

    def saved_step(self):
        names = step_names(self.checkpoints)
        self.assertEqual(len(names), 1, names)
        return int(names[0].split('-')[1])

    def stopped_line(self, step):
        return (rf'(?m)^(\[rank 0\] )?stopped: step {step} of 100000, saved in {self.at(step)}: continue with '
                rf'--checkpoints {self.checkpoints} --resume latest')

    def expect_stopped(self, finished, number):
        self.assertEqual(finished.exit_code, 128 + number, str(finished))
        step = self.saved_step()
        self.assertRegex(finished.lines[-1], self.stopped_line(step))
        self.assertIn(f'step {step}/', finished.output)
        self.assertNotIn(f'step {step + 1}/', finished.output)
        self.assertNotIn('done:', finished.output)
        return step

    def test_all_ranks_save_after_the_same_step_and_the_run_resumes_with_its_bits(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                exported = os.path.join(self.folder, 'exported')
                running = self.endless('--export', exported, ranks=2)
                running.signal(number)
                finished = running.wait()
                step = self.expect_stopped(finished, number)
                self.assertIn('the ranks save before they end, for which they have 600 s', finished.errors)
                self.assertIn(f'--export {exported} is for the end of the run, and was not written', finished.output)
                self.assertFalse(os.path.exists(exported))
                on = self.succeed(self.launch(2, TRAIN), FLAGS, '--steps', str(step + 2), '--checkpoints',
                                  self.checkpoints, '--resume', 'latest')
                whole = self.succeed(self.launch(2, TRAIN), FLAGS, '--steps', str(step + 2), limit_s=120)
                self.assertEqual(on.checksum, whole.checksum)
                self.assertIn('done: ', on.lines[-1])
                subprocess.run(['rm', '-r', self.checkpoints], check=True)

    def test_a_rank_that_has_got_no_signal_saves_and_ends_with_the_others(self):
        ranks = [self.start(TRAIN, FLAGS, '--steps', '100000', '--checkpoints', self.checkpoints,
                            environment=self.rank_environment(rank, 2)) for rank in range(2)]
        ranks[0].wait_for_text('step 3/')
        ranks[1].signal(signal.SIGHUP)
        self.assertEqual(ranks[1].wait().exit_code, 129)
        self.expect_stopped(ranks[0].wait(), signal.SIGTERM)

    def test_what_a_signal_to_a_group_sends_twice_is_one_signal(self):
        # As systemd and scancel do: to elixir-run, which passes it on, and to each rank.
        running = self.endless(ranks=2)
        trainers = self.processes('elixir-train')
        self.assertEqual(len(trainers), 2)
        for pid in trainers:
            os.kill(pid, signal.SIGTERM)
        running.signal(signal.SIGTERM)
        self.expect_stopped(running.wait(), signal.SIGTERM)

    def test_a_second_signal_ends_it_at_once(self):
        running = self.endless()
        harness.stop(self.daemon.pid)  # so that no save gets anywhere
        for _ in range(2):
            running.signal(signal.SIGTERM)
            wait_until(lambda: running.ended() or not is_pending(running.pid, signal.SIGTERM), 'it is taken')
        self.assertEqual(running.wait().exit_code, 143)
        self.daemon.signal(signal.SIGCONT)
        self.assertEqual(step_names(self.checkpoints), [])

    def test_killed_between_the_signal_and_the_save_it_resumes_from_the_checkpoint_before(self):
        """Once before the save has begun, once while it is written."""
        undisturbed = self.succeed(TRAIN, FLAGS, '--steps', '12').checksum
        for slow in (False, True):
            with self.subTest(slow=slow):
                self.succeed(TRAIN, FLAGS, '--steps', '6', '--checkpoints', self.checkpoints)
                self.stop_elixird(self.daemon)
                # A save of nano has 39 MB.
                self.daemon = self.start_elixird(*(['--checkpoint-rate', '1MiB'] if slow else []))
                running = self.start(TRAIN, FLAGS, '--steps', '100000', '--checkpoints', self.checkpoints, '--resume',
                                     'latest')
                running.wait_for_text('step 9/')
                if not slow:
                    harness.stop(self.daemon.pid)
                running.signal(signal.SIGTERM)
                if slow:
                    running.wait_for_text(r'saving \S+step-\d+')
                else:
                    wait_until(lambda: not is_pending(running.pid, signal.SIGTERM), 'it is taken')
                running.signal(signal.SIGKILL)
                self.daemon.signal(signal.SIGKILL)
                self.daemon.wait()
                running.wait()
                # The kill may leave a folder of the save that was under way; the next one removes it.
                self.assertEqual(whole_step_names(self.checkpoints), [name_of(6)])
                self.daemon = self.start_elixird()
                on = self.succeed(TRAIN, FLAGS, '--steps', '12', '--checkpoints', self.checkpoints, '--resume',
                                  'latest')
                self.assertEqual(on.checksum, undisturbed, str(on))
                subprocess.run(['rm', '-r', self.checkpoints], check=True)

    def test_a_save_that_fails_does_not_keep_a_run_that_is_told_to_end(self):
        running = self.endless()
        os.rename(self.checkpoints, self.checkpoints + '-moved')
        running.signal(signal.SIGTERM)
        finished = running.wait()
        self.assertEqual(finished.exit_code, 143, str(finished))
        self.assertRegex(finished.output, r'(?m)^stopped: step \d+ of 100000, nothing was saved: .*checkpoints')

    def test_what_has_failed_says_so_at_the_end(self):
        running = self.endless()
        self.daemon.signal(signal.SIGKILL)
        finished = running.wait()
        self.assertEqual(finished.exit_code, 5, str(finished))
        self.assertRegex(finished.lines[-1], r'^failed: step \d+ of 100000: .*elixird')
        self.daemon.wait()
        self.daemon = self.start_elixird()

    def test_what_torch_throws_in_a_step_ends_the_run_as_any_failure(self):
        # Less memory than the forward pass takes, and more than the start does.
        limited = ['sh', '-c', 'ulimit -d 300000; exec "$@"', 'sh']
        failed = self.run_program(limited, TRAIN, '--layers', '1', '--batch', '512', '--seq', '128', '--threads', '1',
                                  '--steps', '2')
        self.assertNotEqual(failed.exit_code, 0, str(failed))
        self.assertRegex(failed.lines[-1], r'^failed: step 1 of 2: .*memory')

    def test_a_second_job_says_at_once_for_whom_it_waits(self):
        running = self.endless()
        second = self.start(TRAIN, FLAGS, '--steps', '5', '--checkpoints', self.checkpoints, '--resume', 'latest')
        second.wait_for_text(rf'checkpoint_lock_waits .*held_by="process {running.pid} on .*waits up to 30 s')
        second.signal(signal.SIGTERM)
        second.wait()
        running.signal(signal.SIGTERM)
        running.wait()


@unittest.skipIf(os.geteuid() != 0, 'only root may mount a file system')
class ExportRoom(Checkpoint):
    def mounted(self, size):
        folder = os.path.join(self.folder, 'disk')
        os.makedirs(folder, exist_ok=True)
        mount = ['mount', '-t', 'tmpfs', 'elixir-test', folder, '-o', f'size={size}']
        if subprocess.run(mount, check=False).returncode != 0:
            self.skipTest('no tmpfs can be mounted here')
        self.addCleanup(subprocess.run, ['umount', '-l', folder], check=True)
        return folder

    def test_a_disk_that_is_too_small_is_refused_before_the_first_step(self):
        folder = self.mounted('5m')
        refused = self.run_program(TRAIN, FLAGS, '--steps', '3', '--export', os.path.join(folder, 'model'))
        self.assertEqual(refused.exit_code, 3, str(refused))
        self.assertRegex(refused.errors, rf'--export {folder}/model: the model takes 12\.\d+ MiB there, and {folder} '
                         r'has 5\.00 MiB free')
        self.assertNotIn('step 1/', refused.output)

    def test_the_room_is_kept_until_the_end_whatever_others_write_there(self):
        folder = self.mounted('16m')
        running = self.start(TRAIN, FLAGS, '--steps', '100000', '--stop-after-save', '--checkpoints', self.checkpoints,
                             '--export', os.path.join(folder, 'model'))
        running.wait_for_text('step 1/')
        self.assertEqual(os.listdir(folder), [])
        running.signal(signal.SIGKILL)
        running.wait()
        about = os.statvfs(folder)
        self.assertGreater(about.f_bavail * about.f_frsize, 15 << 20, 'nothing is left of it')
        running = self.start(TRAIN, FLAGS, '--steps', '60', '--export', os.path.join(folder, 'model'))
        running.wait_for_text('step 1/')
        with self.assertRaises(OSError), open(os.path.join(folder, 'others'), 'wb', buffering=0) as others:
            while True:
                others.write(bytes(1 << 16))
        finished = running.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertIn('model.safetensors.index.json', os.listdir(os.path.join(folder, 'model')))


if __name__ == '__main__':
    harness.main()
