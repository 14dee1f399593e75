"""What a user can get wrong: the message names it and how to mend it, the exit code is that of
docs/errors.md, nothing has been trained and nothing is left."""

import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, TINY, program  # noqa: E402

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, BAD_INPUT, UNAVAILABLE, ALREADY_RUNNING = 2, 3, 4, 5, 8


class BadInput(harness.ElixirTest):
    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, 'wb') as file:
                file.write(content)
        return path

    def refused(self, code, needles, *command, **how):
        finished = self.run_program(*command, **how)
        self.assertEqual(finished.exit_code, code, str(finished))
        for needle in needles:
            self.assertIn(needle, finished.errors)
        self.assertNotIn('step 1/', finished.output)
        self.assertNotIn('done:', finished.output)
        return finished

    def train(self, *flags):
        return [program('train_gpt2'), TINY, '--steps', '2', '--data', self.good_text(), *flags]

    def good_text(self):
        return self.path('good.txt', b'a text like any other, said again and again\n' * 50)

    # ---- data ----

    def test_data(self):
        cases = [
            (self.path('noise', bytes(range(256)) * 100), ['not a text file', 'NUL', '.bin']),
            (self.path('empty', b''), ['empty', 'give a file with text in it']),
            (self.path('missing'), ['No such file', 'give a file that exists']),
            (self.path('short', b'too short'), ['9 tokens', '33', 'smaller --seq']),
            (self.path('odd.bin', b'\1\0' * 100 + b'\1'), ['.bin']),
            (self.path('foreign.bin', b'\xff\xff' * 100), ['65535']),
            (self.folder, ['a directory']),
        ]
        for path, needles in cases:
            with self.subTest(data=os.path.basename(path)):
                self.refused(BAD_INPUT, [path, *needles], program('train_gpt2'), TINY, '--steps', '2',
                             '--data', path)
        # Found out before anything was started.
        self.assertEqual(self.processes(), [])
        self.assertEqual(os.listdir(self.runtime), [])

    def test_the_same_command_with_a_good_file_trains(self):
        self.start_elixird()
        self.succeed(self.train())

    def test_one_bad_file_among_good_ones_is_named(self):
        bad = self.path('bad', b'text\0')
        self.refused(BAD_INPUT, [bad], self.train(bad))

    def test_through_the_launcher_the_code_is_the_same_and_nothing_is_left(self):
        self.refused(BAD_INPUT, ['No such file'], self.launch(2, program('train_gpt2')), '--data',
                     self.path('missing'))
        self.assert_nothing_left()

    def test_a_jsonl_file_that_cannot_be_written(self):
        self.refused(BAD_INPUT, ['--jsonl', 'give a file in a folder'],
                     self.train('--jsonl', self.path('no/such/folder/steps')))

    def test_a_jsonl_file_on_a_full_disk(self):
        self.start_elixird()
        self.refused(RESOURCE_EXHAUSTED, ['--jsonl /dev/full', 'No space left', 'make room'],
                     self.train('--jsonl', '/dev/full'))

    # ---- the plan ----

    def test_a_chunk_may_be_shorter_than_the_longest_parameter(self):
        daemon = self.start_elixird()
        for chunk_numel in ('1000', '262016', '262144'):
            self.succeed(self.train('--chunk-numel', chunk_numel))
        self.assert_daemon_is_free(daemon.pid)

    # ---- memory ----

    def test_more_memory_than_elixird_may_use(self):
        daemon = self.start_elixird('--memory-limit', '55MiB')
        for rank_flags in (['--dtype', 'fp32'], ['--dtype', 'bf16']):
            finished = self.refused(RESOURCE_EXHAUSTED,
                                    ['MiB of host memory', '55.00 MiB are available', 'memory_limit',
                                     'smaller model', 'raise that limit'],
                                    self.launch(3, self.train(rank_flags)))
            # Every rank was refused; none was left to wait for the others.
            self.assertLess(finished.seconds, 30)
            self.assert_daemon_is_free(daemon.pid)
        # What fits is served: one rank, and after it another.
        for _ in range(2):
            self.succeed(self.train())
        self.assert_daemon_is_free(daemon.pid)

    def test_a_model_that_no_machine_here_can_hold(self):
        # Refused before the model is built: building it would take the machine's memory.
        for start in (self.train(['--model', '20b']),
                      self.launch(2, self.train(['--model', '20b']))):
            finished = self.refused(RESOURCE_EXHAUSTED,
                                    ['GiB of host memory', 'are available', 'smaller model'], start)
            self.assertLess(finished.seconds, 10)

    def test_what_other_jobs_hold_counts(self):
        self.start_elixird('--memory-limit', '100MiB')
        first = self.start(program('train_gpt2'), TINY, ENDLESS)
        first.wait_for_text('^step 1/')
        self.refused(RESOURCE_EXHAUSTED, ['of other jobs', 'end other jobs'], self.train())
        first.signal(15)
        self.assertEqual(first.wait().exit_code, 143)
        self.succeed(self.train())

    def cgroup_shown_as(self, limit_bytes):
        """A command prefix: what follows sees its control group with this limit. Only the files are
        shown, in a mount namespace of its own: no group is made or joined."""
        shown = self.path('cgroup')
        shutil.rmtree(shown, ignore_errors=True)
        with open('/proc/self/cgroup', encoding='ascii') as file:
            for line in file:
                number, controllers, path = line.rstrip('\n').split(':', 2)
                if number == '0':
                    folder, files = shown + path, ('memory.max', 'memory.current')
                elif 'memory' in controllers.split(','):
                    folder = os.path.join(shown, 'memory') + path
                    files = ('memory.limit_in_bytes', 'memory.usage_in_bytes')
                else:
                    continue
                os.makedirs(folder, exist_ok=True)
                for name, value in zip((*files, 'memory.stat'), (limit_bytes, 20 << 20, '')):
                    with open(os.path.join(folder, name), 'w', encoding='ascii') as out:
                        out.write(f'{value}\n')
        words = ['unshare', '--mount', '--map-root-user'][:2 if os.geteuid() == 0 else 3]
        prefix = [*words, 'sh', '-c', f'mount --bind {shown} /sys/fs/cgroup && exec "$@"', 'sh']
        if not os.path.exists(shown) or subprocess.run([*prefix, 'true'], check=False).returncode:
            self.skipTest('no control groups here, or no right to show others')
        return prefix

    def test_more_memory_than_the_control_group_has(self):
        for limit_bytes, fits in ((64 << 20, False), (4 << 30, True)):
            with self.subTest(limit_bytes=limit_bytes):
                job = [self.cgroup_shown_as(limit_bytes),
                       self.launch(2, self.train(), flags=['--daemon-arg=--memory-margin=0'])]
                if fits:
                    self.succeed(job)
                else:
                    self.refused(RESOURCE_EXHAUSTED, ['44.00 MiB are available', 'of cgroup'], job)
                self.assert_nothing_left()

    # ---- elixird ----

    def test_a_second_elixird(self):
        daemon = self.start_elixird()
        self.refused(ALREADY_RUNNING,
                     [f'pid {daemon.pid}', f'kill {daemon.pid}', '--runtime-dir'], program('elixird'))
        # The first one was not disturbed, its sockets included.
        self.succeed(self.train())
        self.assertEqual(self.status()['daemon']['pid'], daemon.pid)
        # In a folder of its own there may be another.
        other = self.path('other')
        second = self.start(program('elixird'), '--no-bandwidth-probe', '--runtime-dir', other)
        second.wait_for_text('event=listening')

    def test_an_elixird_that_cannot_start_is_shown_to_the_trainer(self):
        broken = self.path('elixird', b'#!/bin/sh\necho no such luck\nexit 1\n')
        os.chmod(broken, 0o755)
        self.refused(UNAVAILABLE, ['elixird ended while starting', 'no such luck', 'elixird.log'],
                     self.train(), environment={'ELIXIRD': broken})
        self.refused(UNAVAILABLE, ['no such luck'], self.launch(2, self.train()),
                     environment={'ELIXIRD': broken})
        self.refused(UNAVAILABLE, ['/nowhere', 'ELIXIRD'], self.train(),
                     environment={'ELIXIRD': '/nowhere'})

    def test_a_runtime_folder_that_others_may_write_to(self):
        os.chmod(self.runtime, 0o777)
        for command in ([program('elixird')], self.train(), self.launch(1, self.train()),
                        [program('elixirctl'), 'status']):
            self.refused(INVALID_ARGUMENT, [self.runtime, '0700'], command)
        os.chmod(self.runtime, 0o700)

    def test_a_runtime_folder_whose_sockets_have_no_room_for_their_names(self):
        folder = self.path('a' * 110)
        for command in ([program('elixird'), '--no-bandwidth-probe'], self.train()):
            finished = self.run_program(command, environment={'ELIXIR_RUNTIME_DIR': folder})
            self.assertNotEqual(finished.exit_code, 0, str(finished))
            self.assertRegex(finished.errors, r'has \d+ bytes, the system allows 107: .* shorter folder')

    def test_a_rank_number_twice(self):
        self.start_elixird()
        first = self.start(self.train(), environment=self.rank_environment(0, 2))
        first.wait_for_text('waiting')
        self.refused(INVALID_ARGUMENT, ['rank 0', 'attached already'], self.train(),
                     environment=self.rank_environment(0, 2))
        # The first one still waits for a right one, and gets it.
        self.succeed(self.train(), environment=self.rank_environment(1, 2))
        self.assertEqual(first.wait().exit_code, 0)

    def test_ranks_of_several_nodes(self):
        self.refused(INVALID_ARGUMENT, ['4 ranks must meet', 'MASTER_ADDR'], self.train(),
                     environment={'RANK': '0', 'WORLD_SIZE': '4', 'LOCAL_RANK': '0',
                                  'LOCAL_WORLD_SIZE': '2'})

    def test_a_rank_that_is_never_started(self):
        self.start_elixird('--attach-timeout-s', '1')
        self.refused(10, ['rank 1', 'did not attach'], self.train(),
                     environment=self.rank_environment(0, 2))

    def test_ranks_with_different_plans(self):
        self.start_elixird()
        first = self.start(self.train('--chunk-numel', '262144'),
                           environment=self.rank_environment(0, 2))
        while 'event=attach' not in self.log():
            self.assertFalse(first.ended(), 'rank 0')
        self.refused(INVALID_ARGUMENT, ['another plan', 'same flags on every rank'],
                     self.train('--chunk-numel', '524288'),
                     environment=self.rank_environment(1, 2))
        first.signal(signal.SIGTERM)
        self.assertNotEqual(first.wait().exit_code, 0)

    # ---- flags, keys, names ----

    def test_unknown_flags_and_names(self):
        elixirctl = program('elixirctl')
        cases = [
            ([program('elixird'), '--memory-limt', '1'], "did you mean '--memory-limit'?"),
            ([program('elixir-run'), '--no-prefx', 'true'], "did you mean '--no-prefix'?"),
            ([elixirctl, 'statsu'], "did you mean 'status'?"),
            ([elixirctl, 'status', '--jsn'], "did you mean '--json'?"),
            ([program('train_gpt2'), '--bach', '2'], "did you mean '--batch'?"),
            ([program('train_gpt2'), '--model', 'nan0'], "did you mean 'gpt2-nano'?"),
            ([program('elixir-run'), '-n', '2', 'trian_gpt2'], "did you mean 'train_gpt2'?"),
            ([program('train_gpt2'), '--dtype', 'fp23'], 'use bf16, fp16 or fp32'),
            ([program('train_gpt2'), '--steps', '0'], '--steps must be at least 1'),
            ([program('train_gpt2'), '--steps', 'ten'], '--steps'),
            ([program('train_gpt2'), '--seq', '100000'], '--seq'),
            ([program('elixird'), '--memory-limit', 'much'], '40GiB'),
            ([program('elixir-run'), '-n', '0', 'true'], '1 to 64'),
            ([program('elixir-run'), '-n', '65', 'true'], '1 to 64'),
            ([program('elixir-run')], 'no PROGRAM to run'),
            ([elixirctl], 'elixirctl status'),
        ]
        for command, needle in cases:
            with self.subTest(command=command[1:]):
                finished = self.refused(INVALID_ARGUMENT, [needle], command)
                # One line, which begins with the program's name.
                name = os.path.basename(command[0])
                self.assertRegex(finished.errors, rf'\A{name}: [^\n]*\n\Z')
        self.assertEqual(self.processes(), [])

    def test_toml_keys_and_values(self):
        cases = [(b'wrokers = 2\n', [':1:', "'--wrokers'", "did you mean '--workers'?"]),
                 (b'\nworkers = "two"\n', [':2:', '--workers', 'two']),
                 (b'workers = \n', [':1:']),
                 (b'workers = 100000\n', ['workers is 100000', '128'])]
        for content, needles in cases:
            with self.subTest(content=content):
                self.refused(INVALID_ARGUMENT, needles, program('elixird'), '--config',
                             self.path('elixird.toml', content))
        self.refused(INVALID_ARGUMENT, ['missing.toml'], program('elixird'), '--config',
                     self.path('missing.toml'))
        # A right file is obeyed, and a flag goes over it.
        config = self.path('right.toml', b'workers = 2\nno_bandwidth_probe = true\n')
        for flags, workers in (([], 2), (['--workers', '1'], 1)):
            daemon = self.start_elixird('--config', config, *flags)
            self.assertEqual(sum(self.status()['daemon']['threads_by_node'].values()), workers)
            self.stop_elixird(daemon)

    def test_an_environment_that_makes_no_sense(self):
        self.refused(INVALID_ARGUMENT, ["RANK='x'", 'not a number'], self.train(),
                     environment={'RANK': 'x', 'WORLD_SIZE': '2'})
        self.refused(INVALID_ARGUMENT, ['rank 2 of 2', 'elixir-run'], self.train(),
                     environment={'RANK': '2', 'WORLD_SIZE': '2'})

    def tearDown(self):
        for running in self.started:  # tests here may leave their elixird running
            if not running.ended() and running.command[0] == program('elixird'):
                running.signal(15)
                running.wait()
        super().tearDown()


if __name__ == '__main__':
    harness.main()
