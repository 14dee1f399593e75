"""scripts/demo.sh, as the README has it, with fewer steps."""

import glob
import os
import signal

import harness

DEMO = os.path.join(harness.REPOSITORY, 'scripts', 'demo.sh')


class Demo(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        # The demo makes folders of its own: here, so that what it leaves can be seen, and so that
        # its processes can be found.
        self.environment['TMPDIR'] = self.folder

    def assert_tidy(self):
        self.assert_no_processes()
        self.assertEqual(glob.glob(os.path.join(self.folder, 'elixir-demo-*')), [])
        self.assert_no_memory()

    def test_its_last_line_is_the_result(self):
        finished = self.succeed(DEMO, '--steps', '12', limit_s=300)
        self.assertRegex(finished.lines[-1],
                         r'^done: first_loss \d+\.\d+ last_loss \d+\.\d+ steps 12 seconds \d')
        # Before it, what the model continues a text with.
        self.assertIn('def ', finished.output.split('--- elixir-generate')[1])
        self.assert_tidy()

    def test_a_signal_ends_it_and_all_that_it_started(self):
        demo = self.start(DEMO, '--log-every', '1')
        demo.wait_for_text('step 2/', limit_s=300)
        demo.signal(signal.SIGTERM)
        self.assertEqual(demo.wait().exit_code, 143)
        self.assert_tidy()

    def test_it_fails_as_the_training_fails(self):
        finished = self.run_program(DEMO, '--data', '/nonexistent', limit_s=300)
        self.assertEqual(finished.exit_code, 4, str(finished))
        self.assertIn('/nonexistent', finished.all_text)
        self.assert_tidy()


if __name__ == '__main__':
    harness.main()
