"""What a user can get wrong: the message names it and how to fix it, the exit code is that of
docs/errors.md, nothing has been trained and nothing is left. (Each cause has a test of its own in its
room; here one of each kind goes through the programs.)"""

import os
import resource
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import ENDLESS, TINY, program  # noqa: E402

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, BAD_INPUT = 2, 3, 4


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
        good_text = self.path('good.txt', b'a text like any other, said again and again\n' * 50)
        return [program('train_gpt2'), TINY, '--steps', '2', '--data', good_text, *flags]

    def test_data_is_looked_at_before_anything_starts(self):
        bad = self.path('noise', bytes(range(256)) * 100)
        self.refused(BAD_INPUT, [bad, 'not a text file', 'NUL', '--tokens-dtype'], self.train(bad))
        self.assertEqual(self.processes(), [])
        self.assertEqual(os.listdir(self.runtime), [])

    def test_through_the_launcher_the_code_is_the_same_and_nothing_is_left(self):
        self.refused(BAD_INPUT, ['No such file'], self.launch(2, program('train_gpt2')), '--data',
                     self.path('missing'))
        self.assert_nothing_left()

    def test_a_jsonl_file_on_a_full_disk(self):
        self.start_elixird()
        self.refused(RESOURCE_EXHAUSTED, ['--jsonl /dev/full', 'No space left', 'make room'],
                     self.train('--jsonl', '/dev/full'))

    def test_a_model_that_no_machine_here_can_hold(self):
        # Refused before the model is built: building it would take the machine's memory.
        self.refused(RESOURCE_EXHAUSTED, ['GiB of host memory', 'are available', 'smaller model'],
                     self.launch(2, self.train(['--model', '20b'])))
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 4 << 20)  # KiB

    def test_what_other_jobs_hold_counts(self):
        daemon = self.start_elixird('--memory-limit', '100MiB')
        first = self.start(program('train_gpt2'), TINY, ENDLESS)
        first.wait_for_text('^step 1/')
        self.refused(RESOURCE_EXHAUSTED, ['of other jobs', 'end other jobs'], self.train())
        # Every rank is refused; none is left to wait for the others.
        self.refused(RESOURCE_EXHAUSTED, ['memory_limit', 'raise that limit'], self.launch(3, self.train()))
        first.signal(15)
        self.assertEqual(first.wait().exit_code, 143)
        self.succeed(self.train())
        self.assert_daemon_is_free(daemon.pid)

    def test_a_runtime_folder_whose_sockets_have_no_room_for_their_names(self):
        folder = self.path('a' * 110)
        for command in ([program('elixird'), '--no-bandwidth-probe'], self.train()):
            finished = self.run_program(command, environment={'ELIXIR_RUNTIME_DIR': folder})
            self.assertNotEqual(finished.exit_code, 0, str(finished))
            self.assertRegex(finished.errors, r'has \d+ bytes, the system allows 107: .* shorter folder')

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
            ([program('train_gpt2'), '--steps', 'ten'], '--steps'),
            ([program('elixird'), '--memory-limit', 'much'], '40GiB'),
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

    def tearDown(self):
        for running in self.started:  # tests here may leave their elixird running
            if not running.ended() and running.command[0] == program('elixird'):
                running.signal(15)
                running.wait()
        super().tearDown()


if __name__ == '__main__':
    harness.main()
