"""The harness notices what it is there to notice: without this, a test that finds nothing left
could be one that does not look."""

import io
import mmap
import os
import sys
import tempfile
import unittest

import harness

HOLD_MEMORY = """import os, signal
os.ftruncate(os.memfd_create('elixir-test'), 4096)
print('held', flush=True)
signal.pause()"""


class Leaver(harness.ElixirTest):
    """Does what tests must not do; run by the tests below alone."""

    def leaves_nothing(self):
        self.succeed('true')
        self.assert_nothing_left()

    def leaves_a_process(self):
        # Not while it starts another program: its environment, by which it is found, cannot be read then.
        self.start('bash', '-c', 'setsid sleep 1000 & disown; '
                                 'until [[ $(</proc/$!/comm) == sleep ]]; do sleep 0.01; done').wait()

    def leaves_a_socket(self):
        with open(os.path.join(self.runtime, 'attach.sock'), 'wb'):
            pass
        self.assert_nothing_left()

    def leaves_memory(self):
        with tempfile.TemporaryFile(dir='/dev/shm') as file:
            os.posix_fallocate(file.fileno(), 0, 2 * harness.GROUP_NOISE_BYTES)
            self.assert_no_memory(limit_s=1)

    def leaves_memory_where_there_is_no_group(self):
        if self.memory_group:
            self.memory_group.leave()
            self.memory_group = None
            self.shared_bytes_before = self.shared_bytes()
        self.start(sys.executable, '-c', HOLD_MEMORY).wait_for_text('held')
        self.assert_no_memory(limit_s=1)

    def fails_with_its_program(self):
        self.succeed('false')

    def waits_too_long(self):
        self.run_program('sleep', '1000', limit_s=0.2)


class Harness(unittest.TestCase):
    def problems(self, name):
        result = unittest.TextTestRunner(stream=io.StringIO()).run(Leaver(name))
        return [text for _, text in result.failures + result.errors]

    def test_nothing_left_is_no_problem(self):
        self.assertEqual(self.problems('leaves_nothing'), [])

    def test_what_is_left_is_noticed(self):
        for name, needle in (('leaves_a_process', 'the test left processes'),
                             ('leaves_a_socket', 'socket files are left'),
                             ('leaves_memory_where_there_is_no_group', 'shared memory as before'),
                             ('fails_with_its_program', 'exit code 1'),
                             ('waits_too_long', 'still running after 0.2 s')):
            with self.subTest(name):
                problems = self.problems(name)
                self.assertEqual(len(problems), 1, problems)
                self.assertIn(needle, problems[0])

    def test_memory_that_no_process_shows_is_noticed(self):
        group = harness.MemoryGroup.enter()
        if group is None:
            self.skipTest('no memory control group may be made here')
        group.leave()
        self.assertIn('shared memory as before', self.problems('leaves_memory')[0])

    def test_memfds_of_a_process_are_seen_open_and_mapped(self):
        before = harness.memfds_of(os.getpid())
        fd = os.memfd_create('elixir-test')
        os.ftruncate(fd, 1 << 20)
        mapping = mmap.mmap(fd, 1 << 20)  # which keeps a descriptor of its own
        inode = os.fstat(fd).st_ino
        os.close(fd)
        self.assertEqual(harness.memfds_of(os.getpid()), {**before, inode: 1 << 20})
        mapping.close()
        self.assertEqual(harness.memfds_of(os.getpid()), before)


if __name__ == '__main__':
    harness.main()
