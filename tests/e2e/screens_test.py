"""What the programs show on a terminal of 80 columns: no line is wrapped by the terminal."""

import os
import signal

import harness
from checkpoint_run import TRAIN
from harness import REPOSITORY, TINY, program
from screen import COLUMNS, lines_shown

MACHINE = os.path.join(REPOSITORY, 'examples', 'machine_a100x4.json')
CTL = program('elixirctl')


class Screens(harness.ElixirTest):
    def tearDown(self):
        self.assert_no_processes()  # a terminal's server ends after it has answered that it will
        super().tearDown()

    def show(self, *command):
        return lines_shown(self.folder, self.environment, *command)

    def assert_fits(self, lines, least):
        """At least so many lines, none longer than the terminal. (A path alone in its line cannot be broken.)"""
        self.assertGreaterEqual(len(lines), least, lines)
        self.assertEqual([line for line in lines if len(line) > COLUMNS and ' ' in line.strip()], [])

    def test_a_line_that_is_too_long_is_found(self):
        lines = self.show('printf', f"{'x' * COLUMNS}\\n{'y ' * COLUMNS}z\\n")
        self.assertEqual([len(line) for line in lines], [COLUMNS, 2 * COLUMNS + 1])

    def test_progress(self):
        command = [TRAIN, *TINY, '--steps', '6', '--log-every', '1', '--dtype', 'fp16', '--loss-scale', '64']
        lines = self.show(*command)
        self.assert_fits(lines, 7)
        self.assertTrue(lines[-1].startswith('done: '), lines)
        self.stop_idle_elixird()

    def test_status_and_its_legend(self):
        daemon = self.start_elixird()
        training = self.start(TRAIN, TINY, '--steps', '1000000', '--update', 'early', '--swing-stride', '2')
        training.wait_for_text('^step ')
        self.assert_fits(self.show(CTL, 'status'), 20)
        self.assert_fits(self.show(CTL, 'status', '--legend'), 20)
        training.signal(signal.SIGTERM)
        training.wait()
        self.stop_elixird(daemon)

    def test_plans(self):
        for flags in (['--model', 'gpt2-4b'], ['--config', os.path.join(REPOSITORY, 'examples', 'configs', 'llama-3-8b.json'), '--batch', '1']):
            with self.subTest(flags=flags):
                lines = self.show(CTL, 'plan', '--machine', MACHINE, *flags)
                self.assert_fits(lines, 10)
                self.assertTrue(lines[0].startswith('fits         yes: '), lines[0])

    def test_estimates_and_comparisons(self):
        memory = ['--gpus', '4', '--gpu-memory', '24GiB', '--host-memory', '128GiB']
        for command in (['estimate', '--model', 'gpt2-4b', *memory], ['estimate', '--params', '7.5e9', '--gpus', '64'],
                        ['plan', '--model', 'gpt2-4b', '--machine', MACHINE, '--compare']):
            with self.subTest(command=command):
                self.assert_fits(self.show(CTL, *command), 10)

    def test_help(self):
        commands = [[program(name), '--help'] for name in ('elixir-train', 'elixir-run', 'elixird', 'elixir-generate',
                                                            'elixir-convert', 'elixirctl')]
        commands += [[CTL, name, '--help'] for name in ('status', 'doctor', 'plan', 'profile', 'probe', 'estimate',
                                                        'simulate-cache', 'checkpoint')]
        commands += [[CTL, 'checkpoint', name, '--help'] for name in ('list', 'verify', 'estimate', 'export', 'import')]
        for command in commands:
            with self.subTest(command=command):
                self.assert_fits(self.show(*command), 4)


if __name__ == '__main__':
    harness.main()
