"""What goes wrong around elixird disturbs no training: nobody reads its log, it has no memory, strangers
hold its doors. The steps and the bits are those of an undisturbed run."""

import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import unittest

import harness
from harness import NIGHTLY, TINY, program, steps_told, wait_until

# A minute of training where there is time for it.
STEPS = 2600 if NIGHTLY else 30
TRAIN = [program('elixir-train'), *TINY, '--steps', str(STEPS), '--log-every', '1', '--checksum']
LIMIT_S = 280
STRANGERS = 400

FAILING_CALLS = os.environ.get('ELIXIR_FAILING_CALLS_LIBRARY', '')
GREETING = b'\xff' + bytes(8) + b'\x7f\x03\x00NULL' + bytes(48)
READY = b'\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER'


class Disturbed(harness.ElixirTest):
    undisturbed = None  # the weights' hash

    def setUp(self):
        super().setUp()
        if Disturbed.undisturbed is None:
            Disturbed.undisturbed = self.succeed(TRAIN, limit_s=LIMIT_S).checksum
            self.stop_idle_elixird()

    def start_training(self):
        """One that is disturbed once it makes steps."""
        training = self.start(TRAIN, environment={'ELIXIR_JOB': 'bystander'})
        training.wait_for_text('^step ')
        return training

    def assert_undisturbed(self, training):
        finished = training.wait(LIMIT_S)
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(finished.checksum, Disturbed.undisturbed)
        self.assertEqual(steps_told(training), STEPS)

    def connect(self, name, kind):
        def connected():
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.setblocking(False)
            try:
                connection.connect(os.path.join(self.runtime, name))
            except BlockingIOError:  # the backlog is full
                connection.close()
                return None
            return connection

        return wait_until(connected, f'{name} takes a connection')

    def test_a_log_that_nobody_reads(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b'.' * 512)
        except BlockingIOError:
            os.set_blocking(writer, True)
        environment = dict(self.environment)
        daemon = subprocess.Popen([program('elixird'), '--no-bandwidth-probe', '--log-level', 'debug'],
                                  stdin=subprocess.DEVNULL, stderr=writer, env=environment)
        self.addCleanup(daemon.kill)
        self.addCleanup(os.close, writer)
        self.addCleanup(os.close, reader)
        wait_until(lambda: 'attach.sock' in self.sockets(), 'elixird listens')
        training = self.start_training()
        while not training.ended():  # each is a line of the log, or several
            stranger = self.connect('attach.sock', socket.SOCK_SEQPACKET)
            stranger.send(b'garbage')
            stranger.close()
            self.status()
        self.assert_undisturbed(training)
        os.set_blocking(reader, False)
        self.assertNotIn(b'event', self.read_all(reader), 'nothing fitted')
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(harness.PATIENCE_S), 0)
        self.assertRegex(self.read_all(reader).decode(), r'event=log_dropped lines=\d+')

    @staticmethod
    def read_all(reader):
        text = b''
        try:
            while True:
                text += os.read(reader, 1 << 16)
        except BlockingIOError:
            return text

    def test_silent_strangers(self):
        daemon = self.start_elixird()
        training = self.start_training()
        strangers = []
        for number in range(STRANGERS):
            for door in 'control.sock', 'status.sock':
                stranger = self.connect(door, socket.SOCK_STREAM)
                strangers.append(stranger)
                self.addCleanup(stranger.close)
                self.send(stranger, [b'', GREETING[:30], GREETING, GREETING + READY][number % 4])
        self.assertGreater(len(strangers), STRANGERS)
        new = self.start(program('elixir-train'), TINY, '--steps', '2',
                         environment={'ELIXIR_JOB': 'new'})

        def send_a_byte_each():  # no Hello either
            for stranger in strangers:
                self.send(stranger, b'\0')
            return new.ended()

        wait_until(send_a_byte_each, 'a new rank is served', every_s=0.1)
        self.assertEqual(new.wait().exit_code, 0, str(new.wait()))
        self.assert_undisturbed(training)
        self.status()
        self.stop_elixird(daemon)

    @staticmethod
    def send(stranger, sent):
        try:
            stranger.send(sent)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            pass  # there were too many, or its time was over

    @unittest.skipUnless(os.path.exists(FAILING_CALLS), 'elixird has an allocator of its own here')
    def test_memory_that_is_not_there(self):
        plan = Plan(os.path.join(self.folder, 'plan'))
        daemon = self.start(program('elixird'), '--no-bandwidth-probe',
                            environment={'LD_PRELOAD': FAILING_CALLS, 'ELIXIR_FAILING_CALLS': plan.path})
        daemon.wait_for_text('event=listening')
        training = self.start_training()
        for every in 3, 40:
            plan.fail_every(every)
            victim = self.run_program(program('elixir-train'), TINY, '--steps', '2',
                                      environment={'ELIXIR_JOB': 'victim'})
            plan.fail_every(0)
            if victim.exit_code != 0:
                self.assertRegex(victim.all_text, 'memory|closed the connection|is gone', str(victim))
        self.assertGreater(plan.failed(), 0)
        self.assert_undisturbed(training)
        wait_until(lambda: self.run_program(program('elixir-train'), TINY, '--steps', '2').exit_code == 0,
                   'the next one is served')
        self.stop_elixird(daemon)


class Plan:
    """A CallPlan of tests/failing_calls/failing_calls.h, in a file that elixird maps."""

    def __init__(self, path):
        self.path = path
        with open(os.path.join(harness.REPOSITORY, 'tests', 'failing_calls', 'failing_calls.h'),
                  encoding='utf-8') as file:
            names = re.findall(r'^  (k\w+),', file.read().split('enum class Call')[1].split('};')[0], re.M)
        self.allocate = names.index('kAllocate')
        self.behind_counts = 8 + 2 * names.index('kNone') * 8
        with open(path, 'wb') as file:
            file.write(bytes(4096))
        with open(path, 'r+b') as file:
            self.memory = mmap.mmap(file.fileno(), 4096)

    def fail_every(self, number):
        at = self.behind_counts
        struct.pack_into('<Q', self.memory, at + 16, 0)
        struct.pack_into('<IIIi', self.memory, at, self.allocate, 0, 0, 12)
        struct.pack_into('<BB', self.memory, at + 24, 0, 1)
        struct.pack_into('<Q', self.memory, at + 16, number)

    def failed(self):
        return struct.unpack_from('<I', self.memory, self.behind_counts + 28)[0]


if __name__ == '__main__':
    harness.main()
