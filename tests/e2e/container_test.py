"""What a container limits: memory, processor time, /dev/shm, the home folder. A training is refused with numbers
or it runs; if the kernel ends a process for lack of memory, its starter says so. By default a sample."""

import os
import re
import shutil
import signal
import unittest

import harness
from harness import ENDLESS, NIGHTLY, TINY, program, text_of, wait_until
from processor_group import ProcessorGroup

MIB = 1 << 20
RESOURCE_EXHAUSTED = 3
UNITS = {'B': 1, 'KiB': 1 << 10, 'MiB': MIB, 'GiB': 1 << 30}
# Its activations take several times what its states do.
HUNGRY = ['--model', 'gpt2-nano', '--batch', '24', '--seq', '128', '--threads', '1', '--steps', '2']


def bytes_of(text):
    number, unit = text.split()
    return int(float(number) * UNITS[unit])


class Memory(harness.GroupedTest):
    def train_within(self, limit_bytes, ranks=1):
        finished = self.run_program(self.make_group(limit_bytes).inside(),
                                    self.launch(ranks, program('elixir-train'), HUNGRY), limit_s=250)
        if finished.exit_code != 0:
            self.assertEqual(finished.exit_code, RESOURCE_EXHAUSTED, f'{limit_bytes / MIB:.0f} MiB: {finished}')
            self.assertRegex(finished.all_text, r'needs [\d.]+ [MG]iB of host memory')
            self.assertRegex(finished.all_text, r'[\d.]+ [KMG]?i?B are available \(.*memory')
        self.assert_no_processes(harness.PATIENCE_S)
        return finished

    def least_limit(self, ranks):
        """What the group needs, as the refusal in a smaller one says it."""
        small = 400 * MIB
        refused = self.train_within(small, ranks)
        said = re.search(r'needs ([\d.]+ \w+) of host memory, of which.*?; ([\d.]+ \w+) are available', refused.all_text)
        self.assertTrue(said, str(refused))
        return small + bytes_of(said[1]) - bytes_of(said[2])

    def test_a_training_is_refused_with_numbers_or_runs(self):
        for ranks in (1, 2) if NIGHTLY else (1,):
            least = self.least_limit(ranks)
            shares = [0.7 + 0.07 * i for i in range(10)] if NIGHTLY else [0.95, 1.1]
            codes = [self.train_within(int(least * share), ranks).exit_code for share in shares]
            self.assertEqual(codes, sorted(codes, reverse=True), 'more memory is never worse')
            self.assertEqual((codes[0], codes[-1]), (RESOURCE_EXHAUSTED, 0), f'least {least / MIB:.0f} MiB')

    def test_who_was_ended_by_the_kernel_is_told_so(self):
        """A program that takes more than its group has, under elixir-run."""
        group = self.make_group(200 * MIB)
        hungry = ['python3', '-c', 'data = [bytearray(1 << 20) for _ in range(1 << 12)]']
        finished = self.run_program(group.inside(), self.launch(1, hungry))
        self.assertEqual(finished.exit_code, 128 + signal.SIGKILL, str(finished))
        self.assertRegex(finished.errors, r"elixir-run: rank 0 \(pid \d+\) was killed by SIGKILL: the kernel's out-of-"
                                          r'memory killer has ended a process of cgroup /\S*' +
                                          os.path.basename(group.folder))
        self.assertIn('200.00 MiB', finished.errors)

    def test_one_that_was_killed_otherwise_is_not(self):
        launch = self.start(self.make_group(2000 * MIB).inside(), self.launch(1, program('elixir-train'), TINY, ENDLESS))
        launch.wait_for_text('^step 2/')
        trainer, = self.processes('elixir-train')
        os.kill(trainer, signal.SIGKILL)
        finished = launch.wait()
        self.assertIn('was killed by SIGKILL', finished.errors)
        self.assertNotIn('out-of-memory', finished.all_text)

    def test_a_lost_trainer_or_elixird_is_told_so_to_the_others(self):
        for victim, expected in (('elixir-train', r"event=lost .*cause=.the kernel's out-of-memory killer"),
                                 ('elixird', r"elixird is gone \(the kernel's out-of-memory killer")):
            group = self.make_group(800 * MIB)
            launch = self.start(group.inside(), self.launch(1, program('elixir-train'), TINY, ENDLESS))
            launch.wait_for_text('^step 2/')
            chosen, = [pid for pid in self.processes(victim) if pid in group.pids()]
            with open(f'/proc/{chosen}/oom_score_adj', 'w', encoding='ascii') as file:
                file.write('1000')
            self.exhaust(group)
            finished = launch.wait()
            self.assertNotEqual(finished.exit_code, 0, str(finished))
            self.assertIn('800.00 MiB', finished.errors)
            self.assertRegex(finished.errors, rf"elixir-run: (rank 0|elixird) \(pid \d+\) was killed by SIGKILL: the kernel's")
            self.assertRegex(finished.all_text + self.log(), expected)
            self.assert_no_processes()

    def exhaust(self, group):
        """Takes memory in the group until the kernel ends the process that was chosen, and then this one."""
        self.run_program(group.inside(), 'python3', '-c', 'data = [bytearray(1 << 20) for _ in range(800)]')


class Processors(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.group = ProcessorGroup.make(0.5)
        if self.group is None:
            self.skipTest('no control group of processor time can be made')
        self.addCleanup(self.group.remove)
        self.addCleanup(self.end_everything)
        del self.environment['OMP_NUM_THREADS']

    def test_half_a_processor_is_one_thread(self):
        finished = self.run_program(self.group.inside(), program('elixirctl'), 'doctor')
        self.assertRegex(finished.output, r"processors +\d+ that .*a quota allows 0\.50 processors' time \(cpu\.\S+ of "
                                          r'cgroup \S+\): 1 thread')
        daemon = self.start(self.group.inside(), program('elixird'), '--no-bandwidth-probe')
        self.assertEqual(daemon.wait_for_text(r'event=listening .*workers=(\d+)')[1], '1')
        self.stop_elixird(daemon)

    def test_a_training_runs_within_it(self):
        self.succeed(self.group.inside(), self.launch(1, program('elixir-train'), '--batch', '1', '--seq', '32',
                                                      '--steps', '5'))


class Folders(harness.ElixirTest):
    TRAIN = [program('elixir-train'), *TINY, '--steps', '2']

    def test_without_a_home(self):
        self.environment.pop('HOME', None)
        self.environment.pop('XDG_CACHE_HOME', None)
        self.succeed(self.TRAIN)
        self.stop_idle_elixird()

    def test_a_home_that_cannot_be_written_or_is_not_there(self):
        """A file in the place of a folder keeps root out, too."""
        no_folder = os.path.join(self.folder, 'file')
        with open(no_folder, 'wb'):
            pass
        for home in (no_folder, os.path.join(self.folder, 'missing'), '/proc/self'):
            self.environment['HOME'] = home
            self.succeed(self.TRAIN)
            self.stop_idle_elixird()

    @unittest.skipUnless(shutil.which('unshare') and os.geteuid() == 0, 'no mount namespace can be made')
    def test_without_dev_shm(self):
        other_dev = os.path.join(self.folder, 'dev')
        os.mkdir(other_dev)
        without = ['unshare', '--mount', 'sh', '-c',
                   'mount -t tmpfs none "$0" && for name in null zero urandom; do : >"$0/$name" && '
                   'mount --bind "/dev/$name" "$0/$name" || exit 99; done && mount --rbind "$0" /dev && '
                   '[ ! -e /dev/shm ] && exec "$@"', other_dev]
        self.succeed(without, self.launch(2, self.TRAIN))


if __name__ == '__main__':
    harness.main()
