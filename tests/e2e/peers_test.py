"""bench/peers.py as far as it needs no DeepSpeed: its rows, its errors, and that it finds a system
which does not train what the others train."""

import json
import os
import signal

import harness
from harness import REPOSITORY, wait_until

PEERS = os.path.join(REPOSITORY, 'bench', 'peers.py')
BUILD = os.path.realpath(os.path.join(harness.BIN, '..'))
# The Python of .venv: it has torch, and no DeepSpeed.
PYTHON = os.path.join(REPOSITORY, '.venv', 'bin', 'python')
SHORT = ['--dtype', 'fp32', '--batch', '1', '--seq', '32', '--steps', '3', '--rounds', '1',
         '--threads', '1']


class Peers(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.environment['TMPDIR'] = self.folder  # where its own folders go
        self.environment['OMP_WAIT_POLICY'] = 'PASSIVE'  # as in any test: nobody spins

    def command(self, *flags):
        return ['python3', '-B', PEERS, '--build', BUILD, '--python', PYTHON, SHORT, flags]

    def rows(self, exit_code, *flags):
        finished = self.run_program(self.command('--json', *flags), limit_s=400)
        self.assertEqual(finished.exit_code, exit_code, str(finished))
        self.assert_no_processes()
        rows = json.loads(finished.output)['rows']
        return {row['system']: row for row in rows}, finished

    def test_rows_of_systems_that_train_the_same(self):
        rows, _ = self.rows(0, '--systems', 'elixir', 'fsdp2', 'torch')
        self.assertEqual(list(rows), ['elixir', 'fsdp2', 'torch'])
        for row in rows.values():
            self.assertNotIn('error', row)
            self.assertGreater(row['step_ms_min'], 0)
            self.assertLessEqual(row['step_ms_min'], row['step_ms'])
            self.assertLessEqual(row['step_ms'], row['step_ms_max'])
            self.assertAlmostEqual(row['tokens_s'], 1e3 * 2 * 32 / row['step_ms'])
            self.assertGreater(row['host_bytes'], 3_260_000 * 12)  # the states alone, once
            self.assertLess(row['loss_last'], row['loss_first'])
        self.assertEqual(rows['elixir']['ratio'], 1)
        self.assertGreater(rows['torch']['ratio'], 0)

    def test_what_fails_is_a_row_with_an_error(self):
        # torch comes first, so Elixir with another learning rate is the one that differs.
        rows, _ = self.rows(1, '--systems', 'torch', 'elixir', 'zero2', '--alter-lr', 'elixir=1.5')
        self.assertNotIn('error', rows['torch'])
        self.assertIn('another training: the loss of step', rows['elixir']['error'])
        self.assertIn('scripts/peers_setup.sh', rows['zero2']['error'])
        self.assertIsNone(rows['zero2']['step_ms'])
        self.assertIsNone(rows['torch']['ratio'])

    def test_elixir_missing_failing_or_too_slow_is_an_error_too(self):
        for flags, error in ((['--build', '/nonexistent'], 'scripts/build.sh'),
                             (['--data', '/dev/zero/nothing'], None),
                             (['--steps', '1000000', '--timeout', '2'], 'still running after 2 s'),
                             (['--steps', '1000000', '--budget', '2'], 'still running after 2 s'),
                             (['--data', PYTHON], 'not a text file')):
            with self.subTest(flags=flags):
                if error is None:
                    self.assertEqual(self.run_program(self.command(*flags)).exit_code, 2)
                    continue
                rows, _ = self.rows(1, '--systems', 'elixir', *flags)
                self.assertIn(error, rows['elixir']['error'])

    def test_a_table_for_people(self):
        finished = self.succeed(self.command('--systems', 'elixir'), limit_s=120)
        self.assertRegex(finished.output, r'(?m)^nano, fp32, 2 ranks of 1 x 32 tokens')
        self.assertRegex(finished.output, r'(?m)^\| elixir \| [\d.]+ \([\d.]+ – [\d.]+\) \| 1.00 \|')

    def test_wrong_flags_are_refused_with_what_is_right(self):
        for flags, text in ((['--model', 'nanoo'], "'nano'"), (['--systems', 'zero9'], "'zero2'"),
                            (['--dtype', 'fp64'], "'bf16'"), (['--ranks', '0'], 'greater than 0'),
                            (['--gpu-memory', 'lots'], '40GiB'), (['--seq', '300'], 'context'),
                            (['--zero', 'stage'], 'NAME=VALUE'), (['--nonsense'], '--nonsense')):
            with self.subTest(flags=flags):
                finished = self.run_program(self.command(*flags))
                self.assertEqual(finished.exit_code, 2, str(finished))
                self.assertIn(text, finished.errors)

    def test_a_signal_ends_it_and_all_that_it_started(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal=number):
                peers = self.start(self.command('--systems', 'elixir', '--steps', '1000000'))
                wait_until(lambda: len(self.processes('train_gpt2')) == 2, 'two ranks')
                peers.signal(number)
                self.assertEqual(peers.wait().exit_code, 128 + number)
                # Killed, it cannot wait for them: they end by themselves.
                self.assert_no_processes(limit_s=30)


if __name__ == '__main__':
    harness.main()
