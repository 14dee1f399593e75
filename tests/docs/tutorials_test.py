"""Tutorials do what they say: their commands run one after the other, in one folder, with the output that the
reader sees (pages.py). The folder looks like the repository; what a tutorial writes stays in it."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
import pages  # noqa: E402
from harness import BIN, REPOSITORY  # noqa: E402

BUILD = os.path.realpath(os.path.join(BIN, '..'))
FOREIGN_VENV = os.path.join(REPOSITORY, 'build', 'foreign_venv')
LIMIT_S = 240


class Tutorial(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.here = os.path.join(self.folder, 'here')
        os.makedirs(os.path.join(self.here, 'build'))
        for name in os.listdir(REPOSITORY):
            if name not in ('build', '.git'):
                os.symlink(os.path.join(REPOSITORY, name), os.path.join(self.here, name))
        # Whichever build this is.
        os.symlink(BUILD, os.path.join(self.here, 'build', 'release'))
        if os.path.isdir(FOREIGN_VENV):
            os.symlink(FOREIGN_VENV, os.path.join(self.here, 'build', 'foreign_venv'))

    def run_step(self, step):
        # A session of its own: Ctrl-C in a terminal goes to all processes of a group.
        # Python shows its lines as they come, as in a terminal.
        running = self.start('setsid', 'bash', '-euo', 'pipefail', '-c', step.script, cwd=self.here,
                             environment={'PYTHONUNBUFFERED': '1'})
        if step.interrupt:
            harness.wait_until(lambda: step.interrupt in running.output or running.ended(), step.interrupt, LIMIT_S)
            os.killpg(running.pid, signal.SIGINT)
        return running.wait(LIMIT_S)

    def faults_of(self, text):
        """Of the first step that is not as the page has it: the steps after it may need it."""
        for step in pages.steps_of(text):
            finished = self.run_step(step)
            interrupted = 128 + signal.SIGINT if step.interrupt else 0
            if finished.exit_code != interrupted:
                return f'line {step.line}: exit code {finished.exit_code} in place of {interrupted}\n{finished}'
            fault = '' if step.output is None else pages.fault_of(step.output, finished.lines)
            if fault:
                return f'line {step.line}: {fault}\n{finished}'
        return ''

    def check(self, name, least_outputs=3):
        with open(os.path.join(REPOSITORY, 'docs', 'tutorials', f'{name}.md'), encoding='utf-8') as file:
            text = file.read()
        self.assertGreaterEqual(sum(step.output is not None for step in pages.steps_of(text)), least_outputs)
        fault = self.faults_of(text)
        if fault:
            self.fail(f'docs/tutorials/{name}.md, {fault}')
        self.stop_idle_elixird()


class Tutorials(Tutorial):
    def test_elixir_train(self):
        self.check('elixir_train')

    def test_shared_node(self):
        self.check('shared_node')

    def test_python(self):
        if not os.access(os.path.join(FOREIGN_VENV, 'bin', 'python'), os.X_OK):
            self.skipTest(f'{FOREIGN_VENV} is not there; scripts/foreign_setup.sh makes it')
        if not os.path.isdir(os.path.join(BUILD, 'python', 'elixir')):
            self.skipTest('this build has no import elixir')
        self.check('python')

    def test_libtorch(self):
        self.check('libtorch', least_outputs=2)


def page(*blocks):
    """A page of (script, output) pairs."""
    text = '# A page\n\nText with `code`.\n'
    for script, output in blocks:
        text += f'\n```sh\n{script}\n```\n'
        if output is not None:
            text += f'\n<!-- output -->\n```text\n{output}\n```\n'
    return text


class Planted(Tutorial):
    """What is wrong is reported."""

    def test_a_page_that_is_right(self):
        self.assertEqual(self.faults_of(page(
            ('mkdir build/kept && echo 1.25 > build/kept/number', None),
            ('echo begin; cat build/kept/number; echo end', 'begin\n1.…\nend'),
            ('for i in 1 2 3 4 5; do echo step $i; done', 'step 1\n…\nstep 4\n…'),
            ('test -x build/release/bin/elixird && ls LICENSE', 'LICENSE'),
            ('false || echo "exit code $?"', 'exit code 1'))), '')
        self.assertFalse(os.path.exists(os.path.join(REPOSITORY, 'build', 'kept')))

    def test_what_is_exported_holds_for_later_blocks(self):
        self.assertEqual(self.faults_of(page(('export HERE=there\nINNER=2', None), ('echo $HERE ${INNER:-none}', 'there none'),
                                             ('export HERE=elsewhere', None), ('echo $HERE', 'elsewhere'))), '')

    def test_a_wrong_line(self):
        self.assertRegex(self.faults_of(page(('echo a; echo b', 'a\nc'))), r'(?s)line 5: .*    c\n.*    b\n')
        self.assertRegex(self.faults_of(page(('echo a; echo b', 'a\n…\nc'))), '    c')
        self.assertRegex(self.faults_of(page(('echo loss 5.1', 'loss 4.…'))), 'loss 4')
        self.assertNotEqual(self.faults_of(page(('echo a.b', 'axb'))), '')

    def test_a_missing_line(self):
        self.assertRegex(self.faults_of(page(('echo a', 'a\nb'))), r'(?s)    b\n.*ends before it')
        self.assertRegex(self.faults_of(page(('echo a; echo c', 'a\n…\nb\n…\nc'))), '    b')
        self.assertNotEqual(self.faults_of(page(('true', 'a'))), '')

    def test_a_line_too_many(self):
        self.assertRegex(self.faults_of(page(('echo a; echo b', 'a'))), r'no line for\n    b')
        self.assertNotEqual(self.faults_of(page(('echo a; echo b; echo c', '…\nb'))), '')

    def test_a_failing_command(self):
        self.assertIn('exit code 3', self.faults_of(page(('true', None), ('exit 3', None), ('exit 4', None))))
        self.assertIn('exit code 1', self.faults_of(page(('false\necho after', 'after'))))
        self.assertIn('exit code 1', self.faults_of(page(('false | cat', None))))
        self.assertIn('exit code 127', self.faults_of(page(('build/release/bin/elixir-nothing', None))))

    def test_an_interrupted_command(self):
        text = page(('trap "echo saved; exit 130" INT; echo step 3; while :; do :; done',
                     'step 3\nsaved'))
        text = text.replace('```sh', '<!-- interrupt: step 3 -->\n```sh')
        self.assertEqual(self.faults_of(text), '')
        self.assertIn('in place of 130', self.faults_of(text.replace('exit 130', 'exit 0')))

    def test_a_mark_without_a_block(self):
        for text in (page(('true', 'a')).replace('```text', '```'), '<!-- output -->\n```text\na\n```\n',
                     '<!-- interrupt: a -->\n\n```sh\ntrue\n```\n'):
            with self.assertRaises(pages.PageError):
                self.faults_of(text)


if __name__ == '__main__':
    harness.main()
