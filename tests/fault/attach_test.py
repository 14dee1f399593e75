"""Peers on the attach socket that are not Elixir's own: another version, dying, lying."""

import os
import signal
import socket
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import attach_wire as wire  # noqa: E402
import harness  # noqa: E402
from harness import TINY, program, wait_until  # noqa: E402

INVALID_ARGUMENT, VERSION_MISMATCH, PROTOCOL = 2, 7, 9
TABLE = wire.table([('weight', 0, 0, 1 << 20)])


class OtherElixird:
    """Listens on a folder's attach socket and answers every message with `reply`."""

    def __init__(self, folder, reply):
        self.requests = []
        self.reply = reply
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.path.join(folder, 'attach.sock'))
        self.listener.listen(8)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                data, fds, _, _ = socket.recv_fds(connection, 65536, 64)
                for fd in fds:
                    os.close(fd)
                if data:  # else it came to see whether somebody listens
                    self.requests.append(data)
                    connection.send(self.reply)
                    connection.recv(1)  # until the trainer has gone


class AttachTest(harness.ElixirTest):
    def refusal(self, data, fds=()):
        with wire.connect(self.runtime) as connection:
            wire.send(connection, data, fds)
            kind, body, _ = wire.receive(connection)
            self.assertEqual(kind, wire.REFUSAL)
            self.assertIsNone(wire.receive(connection)[0], 'the connection stays open')
            return wire.code_and_text(body)

    def attach(self, connection, **request):
        """Sends a right request; the answer's type and descriptors."""
        fd = wire.table_fd(TABLE)
        wire.send(connection, wire.attach_request(TABLE, **request), [fd])
        os.close(fd)
        kind, _, fds = wire.receive(connection)
        return kind, fds

    # ---- versions ----

    def test_an_elixird_of_another_version(self):
        body = (0).to_bytes(280, 'little')
        other = OtherElixird(self.runtime, wire.message(wire.ATTACH_REPLY, body, wire.VERSION + 1))
        finished = self.run_program(program('train_gpt2'), TINY, '--steps', '2')
        self.assertEqual(finished.exit_code, VERSION_MISMATCH, str(finished))
        for needle in (f'version {wire.VERSION + 1}', f'version {wire.VERSION}',
                       'install the same Elixir for both', 'restart elixird'):
            self.assertIn(needle, finished.errors)
        # The trainer spoke this version: the request is the one that this file builds.
        self.assertEqual(wire.HEADER.unpack_from(other.requests[0])[:3],
                         (wire.MAGIC, wire.VERSION, wire.ATTACH_REQUEST))
        # Through the launcher, which adopts what listens.
        finished = self.run_program(self.launch(1, program('train_gpt2')), TINY, '--steps', '2')
        self.assertEqual(finished.exit_code, VERSION_MISMATCH, str(finished))

    def test_an_elixird_that_talks_nonsense(self):
        OtherElixird(self.runtime, b'HTTP/1.1 400 Bad Request\r\n\r\nsomething else entirely')
        finished = self.run_program(program('train_gpt2'), TINY, '--steps', '2')
        self.assertEqual(finished.exit_code, PROTOCOL, str(finished))
        self.assertIn('magic', finished.errors)

    def test_a_trainer_of_another_version(self):
        daemon = self.start_elixird()
        fd = wire.table_fd(TABLE)
        code, text = self.refusal(wire.attach_request(TABLE, version=wire.VERSION + 1), [fd])
        self.assertEqual(code, VERSION_MISMATCH, text)
        self.assertIn('install the same Elixir for both', text)
        # Of a version whose messages may be of any size.
        code, text = self.refusal(wire.message(wire.ATTACH_REQUEST, b'x', wire.VERSION + 7), [fd])
        self.assertEqual(code, VERSION_MISMATCH, text)
        self.assertIn(str(wire.VERSION + 7), text)
        os.close(fd)
        self.assert_serves(daemon)

    # ---- hostile bytes ----

    def test_wrong_messages_are_refused_and_others_do_not_notice(self):
        daemon = self.start_elixird()
        bystander = self.start_bystander()
        good = wire.attach_request(TABLE)
        fd = wire.table_fd(TABLE)
        flipped = bytearray(good)
        flipped[40] ^= 1
        cases = {
            'empty body': wire.message(wire.ATTACH_REQUEST),
            'too short for a header': good[:16],
            'cut': good[:-8],
            'longer than it says': good + b'\0' * 8,
            'wrong checksum': bytes(flipped),
            'wrong magic': wire.message(wire.ATTACH_REQUEST, good[32:], magic=7),
            'another type': wire.message(wire.DETACH),
            'no such type': wire.message(4711),
            'as large as a packet may be': wire.message(wire.ATTACH_REQUEST, b'\0' * 65000),
        }
        for name, data in cases.items():
            with self.subTest(name):
                code, text = self.refusal(data, [fd])
                self.assertEqual(code, PROTOCOL, text)
        with self.subTest('no table'):
            self.assertEqual(self.refusal(good)[0], PROTOCOL)
        with self.subTest('a table that is no memfd'):
            null = os.open('/dev/zero', os.O_RDONLY)
            self.assertEqual(self.refusal(good, [null])[0], PROTOCOL)
            os.close(null)
        with self.subTest('a table that is shorter than announced'):
            short = wire.table_fd(TABLE[:5])
            self.assertEqual(self.refusal(good, [short])[0], PROTOCOL)
            os.close(short)
        with self.subTest('a parameter outside its chunk'):
            outside = wire.table([('weight', 0, 0, (1 << 20) + 1)])
            outside_fd = wire.table_fd(outside)
            self.assertEqual(self.refusal(wire.attach_request(outside), [outside_fd])[0], PROTOCOL)
            os.close(outside_fd)
        with self.subTest('a rank that the job does not have'):
            code, _ = self.refusal(wire.attach_request(TABLE, rank=1, ranks=1), [fd])
            self.assertEqual(code, INVALID_ARGUMENT)
        # The control: unspoilt, the same request is served.
        with wire.connect(self.runtime) as connection:
            kind, fds = self.attach(connection)
            self.assertEqual((kind, len(fds)), (wire.ATTACH_REPLY, 3))
            for received in fds:
                os.close(received)
            self.assertEqual(wire.receive(connection)[0], wire.RANKS_READY)
            wire.send(connection, wire.message(wire.DETACH))
        os.close(fd)
        self.assert_undisturbed(bystander)
        self.assert_serves(daemon)

    # ---- deaths ----

    def test_trainers_that_die_between_attach_and_register(self):
        daemon = self.start_elixird()
        bystander = self.start_bystander()
        for number, ranks in enumerate((1, 2, 1, 2)):
            with self.subTest(ranks=ranks):
                pid = self.die_attached(f'mortal-{number}', ranks)
                wait_until(lambda: f'pid={pid}' in self.log().split('event=lost')[-1],
                           f'the death of {pid} is noticed')
                wait_until(lambda: len(self.status()['jobs']) == 1, 'only the bystander', 5)
        self.assert_undisturbed(bystander)
        self.assert_serves(daemon)

    def die_attached(self, job, ranks):
        """The pid of a process that was killed when it had its AttachReply."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            connection = wire.connect(self.runtime)
            kind, fds = self.attach(connection, job=job, ranks=ranks)
            os.write(writer, bytes([kind, len(fds)]))
            signal.pause()
            os._exit(1)
        os.close(writer)
        try:
            self.assertEqual(os.read(reader, 2), bytes([wire.ATTACH_REPLY, 3]))
        finally:
            os.close(reader)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return pid

    def test_a_peer_of_the_dead_hears_of_it(self):
        daemon = self.start_elixird()
        fds = []
        with wire.connect(self.runtime) as left, wire.connect(self.runtime) as dead:
            for rank, connection in enumerate((left, dead)):
                kind, received = self.attach(connection, job='pair', rank=rank, ranks=2)
                self.assertEqual(kind, wire.ATTACH_REPLY)
                fds += received
            for connection in (left, dead):
                kind, _, received = wire.receive(connection)
                self.assertEqual((kind, len(received)), (wire.RANKS_READY, 4))
                fds += received
            dead.close()
            kind, body, _ = wire.receive(left)
            self.assertEqual(kind, wire.SESSION_FAULT)
            code, text = wire.code_and_text(body)
            self.assertEqual(code, 6, text)
            self.assertIn(f'rank 1 (pid {os.getpid()}) died', text)
            self.assertIsNone(wire.receive(left)[0])
        for fd in fds:
            os.close(fd)
        self.assert_serves(daemon)

    def test_a_goodbye_before_the_job_began_is_no_death_of_the_daemon(self):
        daemon = self.start_elixird()
        with wire.connect(self.runtime) as connection:
            kind, fds = self.attach(connection, ranks=2)
            self.assertEqual(kind, wire.ATTACH_REPLY)
            wire.send(connection, wire.message(wire.DETACH))
        for fd in fds:
            os.close(fd)
        self.assert_serves(daemon)

    # ---- others ----

    def start_bystander(self):
        self.alone = self.succeed(program('train_gpt2'), TINY, '--steps', '300', '--checksum')
        bystander = self.start(program('train_gpt2'), TINY, '--steps', '300', '--checksum')
        bystander.wait_for_text('^step 1/')
        # It waits in the midst of its training until the others are through with elixird.
        bystander.signal(signal.SIGSTOP)
        return bystander

    def assert_undisturbed(self, bystander):
        self.assertFalse(bystander.ended())
        bystander.signal(signal.SIGCONT)
        finished = bystander.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(finished.checksum, self.alone.checksum)

    def assert_serves(self, daemon):
        """It lives, has nothing left of those before, serves a job, and ends well."""
        self.assertFalse(daemon.ended())
        self.assert_daemon_is_free(daemon.pid)
        self.succeed(self.launch(2, program('train_gpt2')), TINY, '--steps', '2')
        self.stop_elixird(daemon)
        self.assert_nothing_left()


if __name__ == '__main__':
    harness.main()
