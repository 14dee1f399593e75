"""A program works in what its starter left it: descriptors 0 to 2 closed in any combination, as cron and daemons
do, and signals ignored, as nohup and a shell's background jobs do. By default a sample of the combinations."""

import json
import os
import re
import shutil
import signal
import unittest

import harness
from harness import ENDLESS, EXAMPLES, NIGHTLY, REPOSITORY, TINY, program, steps_told, text_of, wait_until

SUBSETS = range(8)  # of descriptors 0, 1 and 2, as bits
ALL_CLOSED, OUTPUT_CLOSED = 7, 2
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
PLAIN_GPT2 = os.path.join(harness.BIN, '..', 'bench', 'plain_gpt2')
STEPS = 3


def on_descriptors(subset, target):
    """The beginning of a command line: closes the descriptors of the subset, or opens /dev/null on them."""
    words = ' '.join(f'{fd}{sign}{target}' for fd, sign in enumerate('<>>') if subset >> fd & 1)
    return ['sh', '-c', f'exec "$@" {words}', 'sh']


def ignoring(signals):
    return ['env', f'--ignore-signal={",".join(one.name[3:] for one in signals)}']


def signals_of(pid, line):
    """A mask of /proc/PID/status as a set of signals' numbers."""
    found = re.search(rf'^{line}:\t([0-9a-f]+)$', text_of(f'/proc/{pid}/status'), re.M)
    mask = int(found[1], 16) if found else 0
    return {number for number in range(1, 32) if mask >> (number - 1) & 1}


class Surroundings(harness.ElixirTest):
    def tearDown(self):
        self.stop_idle_elixird()
        super().tearDown()

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, *flags):
        return [program('elixir-train'), *TINY, '--steps', str(STEPS), '--log-every', '1', *flags]

    def made_checkpoint(self):
        self.succeed(self.train('--checkpoints', self.path('made'), '--save-every', str(STEPS)))
        self.stop_idle_elixird()
        return self.path(f'made/step-{STEPS:09}')


class Descriptors(Surroundings):
    def expect_the_same(self, subset, *command):
        """With the descriptors closed a program ends as it does with /dev/null on them. Its exit code."""
        codes = []
        for target in ('/dev/null', '&-'):
            self.forget_files()
            codes.append(self.run_program(on_descriptors(subset, target), command).exit_code)
            self.expect_whole_lines()
        self.assertEqual(codes[1], codes[0], f'{command} with {subset:03b} closed')
        return codes[0]

    def forget_files(self):
        self.stop_idle_elixird()
        for name in ('steps.jsonl', 'masters.safetensors'):
            if os.path.exists(self.path(name)):
                os.remove(self.path(name))

    def expect_whole_lines(self):
        """Nothing that a program printed is in a file that it wrote, or came to elixird as a message."""
        for line in text_of(self.path('steps.jsonl')).splitlines():
            self.assertIn('loss', json.loads(line))
        for line in text_of(os.path.join(self.runtime, 'elixird.log')).splitlines():
            self.assertRegex(line, r'^\S+Z \w+ elixird event=')
            self.assertNotIn('event=refuse', line)

    def expect_dev_null(self, pid, subset):
        """On the descriptors that were closed when the process began."""
        closed = [fd for fd in range(3) if subset >> fd & 1]
        wait_until(lambda: all(self.target_of(pid, fd) == '/dev/null' for fd in closed),
                   f'/dev/null on {closed} of {self.describe(pid)}')

    @staticmethod
    def target_of(pid, fd):
        try:
            return os.readlink(f'/proc/{pid}/fd/{fd}')
        except FileNotFoundError:
            return ''

    def subsets(self, *sample):
        return SUBSETS if NIGHTLY else sample

    def test_of_a_trainer(self):
        for subset in self.subsets(ALL_CLOSED, OUTPUT_CLOSED):
            self.assertEqual(self.expect_the_same(subset, self.train('--jsonl', self.path('steps.jsonl'))), 0)
            self.assertEqual(len(text_of(self.path('steps.jsonl')).splitlines()), STEPS)

    def test_of_a_launch(self):
        for subset in self.subsets(ALL_CLOSED):
            self.forget_files()
            train = [program('elixir-train'), *TINY, *ENDLESS, '--jsonl', self.path('steps.jsonl')]
            launch = self.start(on_descriptors(subset, '&-'), self.launch(2, train))
            wait_until(lambda: len(text_of(self.path('steps.jsonl')).splitlines()) >= STEPS, 'steps')
            self.expect_dev_null(launch.pid, subset)
            launch.signal(signal.SIGTERM)
            self.assertEqual(launch.wait().exit_code, 128 + signal.SIGTERM)
            self.expect_whole_lines()

    def test_of_elixird(self):
        for subset in SUBSETS:
            daemon = self.start(on_descriptors(subset, '&-'), program('elixird'), '--no-bandwidth-probe')
            wait_until(lambda: 'attach.sock' in self.sockets(), 'elixird listens')
            self.expect_dev_null(daemon.pid, subset)
            daemon.signal(signal.SIGTERM)
            self.assertEqual(daemon.wait().exit_code, 0)

    def test_of_programs_that_start_none(self):
        for subset in SUBSETS:
            self.assertEqual(self.expect_the_same(subset, program('elixirctl'), 'status'), 5)
        for subset in self.subsets(ALL_CLOSED, OUTPUT_CLOSED):
            self.assertEqual(self.expect_the_same(subset, program('elixirctl'), 'profile', '--model', 'gpt2-nano'), 0)
            self.assertEqual(self.expect_the_same(subset, program('elixir-profile'), '--model', 'gpt2-nano'), 0)

    def test_of_programs_that_read_a_checkpoint(self):
        folder = self.made_checkpoint()
        for subset in self.subsets(ALL_CLOSED):
            self.assertEqual(self.expect_the_same(subset, program('elixir-convert'), 'export', folder, '--masters',
                                                  self.path('masters.safetensors')), 0)
            self.assertEqual(self.expect_the_same(subset, program('elixir-generate'), folder, '--prompt', 'a',
                                                  '--length', '2', '--threads', '1'), 0)

    @unittest.skipUnless(NIGHTLY, 'a sample by default')
    def test_of_the_other_programs(self):
        train = ['--steps', str(STEPS), *TINY, '--jsonl', self.path('steps.jsonl')]
        others = [[program('train_gpt2'), *train], [program('elixir-probe'), '--device', 'cpu', '--quick']]
        others += [[path, *words] for path, words in ((PLAIN_GPT2, train), (os.path.join(EXAMPLES, 'your_model'), []))
                   if os.path.exists(path)]
        for command in others:
            for subset in SUBSETS:
                self.assertEqual(self.expect_the_same(subset, command), 0)


class Limits(Surroundings):
    FULL = ['sh', '-c', 'exec "$@" >/dev/full', 'sh']
    LOST = 'lines of standard output are lost (No space left on device): make room'
    EXIT_CODES = (0, 3, 5)  # 5: there is no elixird to ask
    NOT_LOADED = 127  # ld.so opens the libraries

    def generate(self, folder):
        return [program('elixir-generate'), folder, '--prompt', 'a', '--length', '2', '--threads', '1']

    def test_output_that_a_full_disk_does_not_take_is_told(self):
        folder = self.made_checkpoint()
        elixirctl = program('elixirctl')
        nano = ['--model', 'gpt2-nano']
        machine = ['--machine', os.path.join(REPOSITORY, 'examples', 'machine_a100x4.json')]
        commands = [[elixirctl, 'plan', *nano, *machine, '--json'], [elixirctl, 'profile', *nano], [elixirctl, 'estimate', *nano],
                    [elixirctl, 'checkpoint', 'list', folder], [elixirctl, '--help'],
                    [program('elixir-profile'), *nano], self.generate(folder),
                    [program('elixird'), '--help'], self.train(), self.launch(2, self.train())]
        for command in commands:
            told = self.run_program(self.FULL, command)
            self.assertEqual(told.exit_code, 3, str(told))
            self.assertIn(f'{os.path.basename(command[0])}: {self.LOST}', told.errors)
            self.stop_idle_elixird()

    def end_with_descriptors(self, limit, *command):
        """Of a program that may have so many, and uses all of them or says that it lacks some. It does not hang."""
        return self.run_program('sh', '-c', f'ulimit -n {limit}; exec "$@"', 'sh', command)

    def expect_no_abort(self, limits, *command):
        for limit in limits:
            with self.subTest(limit=limit):
                ended = self.end_with_descriptors(limit, command)
                loads = ended.exit_code != self.NOT_LOADED or 'error while loading shared libraries' in ended.errors
                self.assertTrue(ended.exit_code in (*self.EXIT_CODES, self.NOT_LOADED) and loads, str(ended))
                if ended.exit_code == 3:
                    self.assertIn('ulimit -n', ended.all_text + self.log())

    def test_too_few_descriptors_end_no_program_by_an_abort(self):
        folder = self.made_checkpoint()
        daemon = self.start_elixird()
        every = range(3, 41)
        for words in (['status'], ['status', '--json'], ['doctor'], ['checkpoint', 'verify', folder]):
            self.expect_no_abort(every if NIGHTLY else range(5, 17), program('elixirctl'), words)
        self.expect_no_abort(every if NIGHTLY else (11, 14), self.generate(folder))
        self.expect_no_abort(every if NIGHTLY else (11, 13), self.train())
        self.stop_elixird(daemon)

    def test_too_few_descriptors_of_elixird_and_of_a_launch(self):
        daemon = [program('elixird'), '--no-bandwidth-probe', '--exit-when-idle', '1']
        self.expect_no_abort(range(3, 41) if NIGHTLY else (8, 12, 20, 23), daemon)
        self.expect_no_abort(range(3, 41) if NIGHTLY else (10, 20), self.launch(2, self.train()))

    def test_a_removed_working_directory_is_named(self):
        for command in (['elixirctl', 'doctor'], ['elixir-train'], ['elixir-generate', 'x'], ['elixird'],
                        ['elixir-run', 'true'], ['elixir-profile'], ['elixir-convert']):
            gone = self.path('gone')
            os.mkdir(gone)
            ended = self.run_program('sh', '-c', f'cd {gone} && rmdir {gone} && exec "$@"', 'sh', program(command[0]),
                                     command[1:])
            self.assertEqual(ended.exit_code, 4, str(ended))
            self.assertEqual(ended.errors.splitlines()[-1],
                             f'{command[0]}: the working directory was removed: cd to another folder')

    def test_a_helper_that_a_signal_ended_has_its_likely_cause(self):
        """A helper stands beside elixirctl."""
        shutil.copy(program('elixirctl'), self.path('elixirctl'))
        for name, cause in (('ABRT', 'its memory limit is the likely cause: raise ulimit -v'),
                            ('KILL', 'the kernel does so if memory is short'), ('XCPU', 'raise ulimit -t')):
            with open(self.path('elixir-profile'), 'w', encoding='utf-8') as file:
                file.write(f'#!/bin/sh\nulimit -c 0\nkill -{name} $$\n')
            os.chmod(self.path('elixir-profile'), 0o700)
            ended = self.run_program(self.path('elixirctl'), 'profile', '--model', 'gpt2-nano')
            self.assertEqual(ended.exit_code, 3, str(ended))
            self.assertIn(f'elixir-profile was ended by SIG{name}: {cause}', ended.errors)

    def test_lines_about_folders_do_not_speak_to_the_terminal(self):
        folder = self.path('\x1b[31mred\nline')
        os.mkdir(folder)
        run = self.succeed(self.train('--checkpoints', f'{folder}/ck', '--export', f'{folder}/model'))
        for line in (r'saving .*\?\[31mred\?line/ck/step', r'saved .*\?\[31mred\?line/ck/step',
                     r'exported .*\?\[31mred\?line/model$'):
            self.assertRegex(run.output, f'(?m)^{line}')
        listed = self.succeed(program('elixirctl'), 'checkpoint', 'list', folder)
        self.assertIn('?[31mred?line', listed.output)
        self.assertNotIn('\x1b', run.all_text + listed.all_text)


class IgnoredSignals(Surroundings):
    def send(self, pid, *signals):
        for number in signals or IGNORED:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it has ended
                pass

    def expect_ignored(self, pid):
        wait_until(lambda: signals_of(pid, 'SigIgn') >= set(IGNORED), f'{self.describe(pid)} ignores them')
        for line in ('SigBlk', 'SigCgt'):  # for a signalfd; by a handler
            self.assertFalse(signals_of(pid, line) & set(IGNORED), f'{line} of {self.describe(pid)}')

    def test_a_launch_survives_what_nohup_ignores(self):
        launch = self.start(ignoring(IGNORED), self.launch(2, [program('elixir-train'), *TINY, *ENDLESS]))
        launch.wait_for_text(r'step 2/')
        everybody = self.processes()
        self.assertEqual(len(everybody), 4, 'elixir-run, elixird and two ranks')
        for pid in everybody:
            self.expect_ignored(pid)
            self.send(pid)
        told = steps_told(launch)
        wait_until(lambda: steps_told(launch) > told + 2, 'more steps')
        self.send(launch.pid, signal.SIGTERM)
        self.assertEqual(launch.wait().exit_code, 128 + signal.SIGTERM)
        self.assert_nothing_left()

    def test_each_signal_ends_a_launch_that_does_not_ignore_it(self):
        """The control. SIGQUIT is the system's own matter."""
        for number in (signal.SIGHUP, signal.SIGINT):
            launch = self.start(self.launch(1, [program('elixir-train'), *TINY, *ENDLESS]))
            launch.wait_for_text(r'step 2/')
            self.send(launch.pid, number)
            self.assertEqual(launch.wait().exit_code, 128 + number)
        self.assert_nothing_left()

    def test_a_service_survives_what_nohup_ignores(self):
        daemon = self.start(ignoring(IGNORED), program('elixird'), '--no-bandwidth-probe')
        daemon.wait_for_text('event=listening')
        self.expect_ignored(daemon.pid)
        self.send(daemon.pid)
        self.status()
        watch = self.start(ignoring(IGNORED), program('elixirctl'), 'status', '--watch')
        watch.wait_for_text('elixird')
        self.expect_ignored(watch.pid)
        self.send(watch.pid)
        self.send(watch.pid, signal.SIGTERM)
        watch.wait()
        self.stop_elixird(daemon)

    def test_every_program_ends_as_without_the_signals(self):
        folder = self.made_checkpoint()
        commands = [[program('elixir-generate'), folder, '--prompt', 'a', '--length', '3', '--threads', '1'],
                    [program('elixir-profile'), '--model', 'gpt2-nano'],
                    [program('elixir-convert'), 'export', folder, '--masters', self.path('masters.safetensors')],
                    [program('elixirctl'), 'doctor'], self.train()]
        if NIGHTLY:
            commands.append([program('elixir-probe'), '--device', 'cpu', '--quick'])
        for command in commands:
            undisturbed = self.run_program(command).exit_code
            if os.path.exists(self.path('masters.safetensors')):
                os.remove(self.path('masters.safetensors'))
            running = self.start(ignoring(IGNORED), command)
            wait_until(lambda pid=running.pid, name=command[0]: running.ended() or
                       text_of(f'/proc/{pid}/cmdline').startswith(name), 'the program runs')
            self.send(running.pid)
            self.assertEqual(running.wait().exit_code, undisturbed, command)
            self.stop_idle_elixird()

    def test_a_starter_that_ignores_the_end_of_children(self):
        """They could not be waited for."""
        self.succeed(ignoring([signal.SIGCHLD]), self.launch(2, self.train()))
        self.assert_nothing_left()


class OtherRanks(Surroundings):
    def test_a_rank_that_waits_names_the_variables_that_announced_others(self):
        """Kubeflow's, where its other ranks were not started; those of a batch script without srun."""
        for rank, size, remedy, more in (
                ('RANK', 'WORLD_SIZE', 'elixir-run or torchrun', {'MASTER_ADDR': 'localhost', 'MASTER_PORT': '23456'}),
                ('SLURM_PROCID', 'SLURM_NTASKS', 'srun', {'SLURM_LOCALID': '0', 'SLURM_JOB_ID': '7'})):
            waiting = self.start(self.train(), environment={rank: '0', size: '2', **more})
            waiting.wait_for_text(f'event=waiting for="the other ranks" .*because="{rank}=0 and {size}=2 in the '
                                  f'environment say that there are 2 ranks: start all of them with {remedy}, or unset')
            self.send_end(waiting)

    def send_end(self, running):
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().exit_code, 128 + signal.SIGTERM)
        self.stop_idle_elixird()


class Threads(Surroundings):
    def environment_of(self, variables):
        """Of a trainer that makes steps."""
        running = self.start(program('elixir-train'), '--batch', '1', '--seq', '32', ENDLESS, environment=variables)
        running.wait_for_text('step 2/')
        with open(f'/proc/{running.pid}/environ', 'rb') as file:
            words = file.read().split(b'\0')
        running.signal(signal.SIGKILL)
        running.wait()
        self.stop_idle_elixird()
        return words

    def test_they_spin_briefly_unless_the_user_says_otherwise(self):
        self.assertIn(b'GOMP_SPINCOUNT=1000', self.environment_of({'OMP_NUM_THREADS': '2'}))
        self.assertNotIn(b'GOMP_SPINCOUNT=1000', self.environment_of({'OMP_NUM_THREADS': '1'}), 'there is one')
        self.assertNotIn(b'GOMP_SPINCOUNT=1000',
                         self.environment_of({'OMP_NUM_THREADS': '2', 'OMP_WAIT_POLICY': 'passive'}))


if __name__ == '__main__':
    harness.main()
