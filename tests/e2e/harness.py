"""Real processes of Elixir under test: started, watched, ended, and nothing of them left.

ctest gives the folder of the programs in ELIXIR_BIN_DIR; without it build/release/bin is taken.
Every test has a runtime folder of its own, and so an elixird of its own. The folder's path is in
the environment of every process that a test starts, and of those that these start in turn: so the
processes of a test can be found, whoever their parent is by now.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from memory_group import MemoryGroup

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
BIN = os.environ.get('ELIXIR_BIN_DIR', os.path.join(REPOSITORY, 'build', 'release', 'bin'))
EXAMPLES = os.environ.get('ELIXIR_EXAMPLES_DIR', os.path.join(BIN, '..', 'examples'))
SKIPPED = 77  # the exit code that ctest calls Skipped
NIGHTLY = 'ELIXIR_EVERY_CASE' in os.environ  # all of what CI takes a sample of

# A training of a fraction of a second; nano has 3.26 M parameters.
TINY = ['--batch', '1', '--seq', '32', '--threads', '1']
# For models of --init and --config, which have no default text.
TEXT = ['--data', os.path.join(REPOSITORY, 'docs', 'training.md')]
# One that a test ends itself.
ENDLESS = ['--steps', '1000000', '--log-every', '1']

# Time for what must happen at some time, on a machine that may be busy.
PATIENCE_S = 240

# What a group's shared memory may differ by without being left over: how the kernel counts, in batches
# a core. The states of one rank of nano alone take 50 MB.
GROUP_NOISE_BYTES = 1 << 20


def program(name):
    return os.path.join(BIN, name)


_held_ports = []


def free_port():
    """A TCP port of this machine, below those that Linux gives to connections. It is held until the
    program ends: nobody can bind it meanwhile, but for who says SO_REUSEADDR, as listeners do."""
    while True:
        held = socket.socket()
        port = random.randrange(20000, 32000)
        try:
            held.bind(('127.0.0.1', port))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held_ports.append(held)
        return port


def text_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except FileNotFoundError:
        return ''


def flat(words):
    """The words of lists in lists, in their order."""
    return [inner for word in words
            for inner in (flat(word) if isinstance(word, (list, tuple)) else [word])]


def wait_until(condition, what, limit_s=PATIENCE_S, every_s=0.005):
    """The condition's first true value; AssertionError, which names `what`, after limit_s."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f'{what}: not within {limit_s} s')
        time.sleep(every_s)


def cpu_s_of(run):
    """Processor seconds of the programs that run() starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def least_of(measure, enough, tries=5):
    """The least of what measure() gives, until one is below `enough`: others may use the processors."""
    least = float('inf')
    for _ in range(tries):
        least = min(least, measure())
        if least < enough:
            break
    return least


def pids():
    return [int(entry) for entry in os.listdir('/proc') if entry.isdigit()]


def steps_told(running):
    return running.output.count('step ')


def stop(pid):
    """SIGSTOP, until every thread stands still: the signal goes to one of them."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(state == 'T' for state in thread_states(pid)), f'{pid} is stopped')


def is_pending(pid, number):
    """Whether a signal was sent to the process and none of its threads has taken it yet."""
    for line in text_of(f'/proc/{pid}/status').splitlines():
        if line.startswith('ShdPnd:'):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def thread_states(pid):
    return [text_of(f'/proc/{pid}/task/{thread}/stat').rpartition(') ')[2][:1]
            for thread in os.listdir(f'/proc/{pid}/task')]


def memfds_of(pid):
    """inode -> bytes of the memfds that a process holds open or has mapped."""
    found = {}
    gone = (FileNotFoundError, ProcessLookupError, PermissionError)
    try:
        descriptors = os.listdir(f'/proc/{pid}/fd')
    except gone:
        return found
    for fd in descriptors:
        path = f'/proc/{pid}/fd/{fd}'
        try:
            if os.readlink(path).startswith('/memfd:'):
                info = os.stat(path)
                found[info.st_ino] = info.st_size
        except gone:  # closed meanwhile
            continue
    try:
        with open(f'/proc/{pid}/maps', encoding='ascii', errors='replace') as file:
            maps = file.read().splitlines()
    except gone:
        return found
    for line in maps:
        if '/memfd:' in line:
            fields = line.split()
            first, last = (int(end, 16) for end in fields[0].split('-'))
            found.setdefault(int(fields[4]), last - first)
    return found


class Finished:
    """What a program that has ended leaves: its exit code (128 + n after signal n) and output."""

    def __init__(self, command, exit_code, output, errors, seconds):
        self.command = command
        self.exit_code = exit_code
        self.output = output
        self.errors = errors
        self.seconds = seconds

    @property
    def lines(self):
        return self.output.splitlines()

    @property
    def all_text(self):
        return self.output + self.errors

    @property
    def checksum(self):
        line = re.search(r'^(?:\[rank 0\] )?weights_xxh64 ([0-9a-f]{16})$', self.output, re.M)
        return line.group(1)

    def __str__(self):
        return (f'{" ".join(self.command)}\nexit code {self.exit_code} after {self.seconds:.1f} s\n'
                f'--- its output\n{self.output[-4000:]}\n--- its errors\n{self.errors[-4000:]}')


class Running:
    """A program under way. Its output goes to files, so that it can be read meanwhile and nobody
    has to empty a pipe."""

    def __init__(self, command, environment, folder, number, cwd):
        self.command = [str(word) for word in command]
        self.output_path = os.path.join(folder, f'{number}.out')
        self.errors_path = os.path.join(folder, f'{number}.err')
        self.start = time.monotonic()
        with open(self.output_path, 'wb') as out, open(self.errors_path, 'wb') as errors:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=errors, env=environment, cwd=cwd)

    @property
    def pid(self):
        return self.process.pid

    @property
    def output(self):
        return text_of(self.output_path)

    @property
    def errors(self):
        return text_of(self.errors_path)

    def ended(self):
        return self.process.poll() is not None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s=PATIENCE_S):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'still running after {limit_s} s: {" ".join(self.command)}\n'
                                 f'{self.output[-3000:]}\n{self.errors[-3000:]}') from None
        return Finished(self.command, 128 - code if code < 0 else code, self.output, self.errors,
                        time.monotonic() - self.start)

    def wait_for_text(self, pattern, limit_s=PATIENCE_S):
        """The first match of a regular expression in what it has printed so far."""
        def look():
            ended = self.ended()  # before the look: what it printed last is there
            match = re.search(pattern, self.output + self.errors, re.M)
            if match is None and ended:
                raise AssertionError(f'ended without /{pattern}/: {self.wait(0)}')
            return match
        return wait_until(look, f'/{pattern}/ of {" ".join(self.command)}', limit_s)


class ElixirTest(unittest.TestCase):
    """A test with a runtime folder and an environment of its own. At its end every process that it
    started, and every process these started, is gone: one that is not fails the test."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='elixir-')
        self.runtime = os.path.join(self.folder, 'run')
        os.mkdir(self.runtime, 0o700)
        self.environment = {name: value for name, value in os.environ.items()
                            if not re.match('ELIXIR|SLURM_|OMPI_|PMIX_|TORCHELASTIC_|OMP_', name)
                            and name not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')}
        self.environment['ELIXIR_RUNTIME_DIR'] = self.runtime
        # What a training keeps of this machine is no other test's.
        self.environment['XDG_CACHE_HOME'] = os.path.join(self.folder, 'cache')
        self.environment['ELIXIR_PROBE_SECONDS'] = '600'  # tests beside this one take its time
        # Operators of several processes on few cores: threads that spin would starve the others.
        self.environment['OMP_NUM_THREADS'] = '1'
        self.started = []
        self.memory_group = MemoryGroup.enter()
        self.shared_bytes_before = self.shared_bytes()

    def tearDown(self):
        left = self.processes()
        told = {pid: self.describe(pid) for pid in left}
        self.end_everything()
        if self.memory_group:
            self.memory_group.leave()
        result = self._outcome.result
        failed = any(test is self for test, _ in result.failures + result.errors)
        log = text_of(os.path.join(self.runtime, 'elixird.log'))
        shutil.rmtree(self.folder, ignore_errors=True)
        if failed and log:
            print(f'--- elixird.log of {self.id()}\n{log[-4000:]}', flush=True)
        if not failed:
            self.assertFalse(told, 'the test left processes')

    # ---- starting ----

    def start(self, *command, environment=None, cwd=None):
        running = Running(flat(command), {**self.environment, **(environment or {})}, self.folder,
                          len(self.started), cwd)
        self.started.append(running)
        return running

    def run_program(self, *command, limit_s=PATIENCE_S, **how):
        return self.start(*command, **how).wait(limit_s)

    def succeed(self, *command, **how):
        finished = self.run_program(*command, **how)
        self.assertEqual(finished.exit_code, 0, str(finished))
        return finished

    def start_elixird(self, *flags):
        """An elixird of this test, listening."""
        daemon = self.start(program('elixird'), '--no-bandwidth-probe', flags)
        # Its log: a client that only comes to look would be one more connection.
        daemon.wait_for_text('event=listening')
        return daemon

    def hold_elixird(self, folder):
        """A connection to the elixird of a runtime folder, which does not end for idleness before it is
        closed: on a busy machine the next trainer may come late."""
        held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(held.close)
        held.connect(os.path.join(folder, 'attach.sock'))
        return held

    def stop_elixird(self, daemon):
        """Ends it as a user would; it must end well and leave no socket."""
        daemon.signal(signal.SIGTERM)
        finished = daemon.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assert_no_sockets()

    def stop_idle_elixird(self):
        """Ends the elixird that a lone trainer has started, which would go 10 s later."""
        for pid in self.processes('elixird'):
            os.kill(pid, signal.SIGTERM)
        self.assert_no_processes()
        self.assert_no_sockets()

    def launch(self, ranks, *command, flags=()):
        """elixir-run's command line, its elixird started without measuring the memory first."""
        return [program('elixir-run'), '-n', str(ranks), '--daemon-arg=--no-bandwidth-probe', *flags,
                *command]

    def rank_environment(self, rank, ranks, job='by-hand'):
        return {'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'LOCAL_RANK': str(rank),
                'LOCAL_WORLD_SIZE': str(ranks), 'ELIXIR_JOB': job}

    # ---- looking ----

    def status(self):
        finished = self.succeed(program('elixirctl'), 'status', '--json')
        return json.loads(finished.output)

    def log(self):
        """What elixird has said; the tests' own elixird says it on its standard error."""
        return text_of(os.path.join(self.runtime, 'elixird.log')) + ''.join(
            running.errors + running.output for running in self.started
            if running.command[0] == program('elixird'))

    def processes(self, name=None, **variables):
        """The pids of this test's processes, of the program `name` and with the environment
        variables given, if any. Not of those that have ended and wait to be reaped."""
        found = []
        for pid in pids():
            if pid == os.getpid():
                continue
            try:
                with open(f'/proc/{pid}/environ', 'rb') as file:
                    words = file.read().split(b'\0')
                if not any(self.folder.encode() in word for word in words):
                    continue
                if name and os.path.basename(os.readlink(f'/proc/{pid}/exe')) != name:
                    continue
                if all(f'{key}={value}'.encode() in words for key, value in variables.items()):
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def shared_bytes(self):
        """That of the test's group, save what this very process holds in memfds, as tests do that play
        a trainer. Where there is no group: the memfds of the test's processes, each once."""
        if self.memory_group:
            return self.memory_group.shmem_bytes() - sum(memfds_of(os.getpid()).values())
        return sum({inode: size for pid in self.processes()
                    for inode, size in memfds_of(pid).items()}.values())

    def describe(self, pid):
        return text_of(f'/proc/{pid}/cmdline').replace('\0', ' ')

    def sockets(self):
        return [name for name in os.listdir(self.runtime) if name.endswith('.sock')]

    # ---- nothing is left ----

    def assert_no_processes(self, limit_s=PATIENCE_S):
        wait_until(lambda: not self.processes(), 'the end of every process', limit_s)

    def assert_no_sockets(self):
        self.assertEqual(self.sockets(), [], 'socket files are left')

    def assert_no_memory(self, limit_s=PATIENCE_S):
        """Where there are groups, also none that no process shows any more."""
        noise_bytes = GROUP_NOISE_BYTES if self.memory_group else 0
        wait_until(lambda: self.shared_bytes() <= self.shared_bytes_before + noise_bytes,
                   'shared memory as before', limit_s, every_s=0.1)

    def assert_nothing_left(self):
        self.assert_no_processes()
        self.assert_no_sockets()
        self.assert_no_memory()

    def assert_daemon_is_free(self, daemon_pid, limit_s=PATIENCE_S):
        """elixird lives, serves nobody, and holds no session's memory."""
        wait_until(lambda: not self.status()['jobs'], 'no job', limit_s, every_s=0.05)
        wait_until(lambda: not memfds_of(daemon_pid), 'no memory held by elixird', limit_s)

    def end_everything(self):
        for running in self.started:
            if not running.ended():
                running.process.kill()
            running.process.wait()
        for _ in range(100):
            left = self.processes()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)


def skip_all(reason):
    """Ends the program as one that ctest calls Skipped."""
    print(f'skipped: {reason}')
    sys.exit(SKIPPED)


class GroupedTest(ElixirTest):
    """A test with memory control groups of its own, beside that of the test."""

    def setUp(self):
        super().setUp()
        self.groups = []

    def tearDown(self):
        self.end_everything()
        for group in self.groups:
            group.kill()
            os.rmdir(group.folder)
        super().tearDown()

    def make_group(self, limit_bytes=None):
        group = MemoryGroup.make(beside=self.memory_group) if self.memory_group else None
        if group is None:
            self.skipTest('no memory control group can be made')
        self.groups.append(group)
        if limit_bytes:
            group.limit(limit_bytes)
        return group


def heed_interrupts():
    """A shell that starts a run in its background, or nohup, has it ignore these, and so would each program of a test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class TimedResult(unittest.TextTestResult):
    """Keeps how long each test took, as (seconds, name)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.took = []

    def startTest(self, test):  # noqa: N802: unittest's name
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):  # noqa: N802
        super().stopTest(test)
        self.took.append((time.monotonic() - self.began, test.id()))


def main():
    """Runs the tests of the program, each skip a line of which scripts/test.sh makes its list. Where
    every test was skipped, the program was, too. Says at the end what took longest."""
    heed_interrupts()
    runner = unittest.TextTestRunner(verbosity=2, resultclass=TimedResult)
    result = unittest.main(testRunner=runner, exit=False).result
    for seconds, name in sorted(result.took, reverse=True)[:10]:
        print(f'took {seconds:.1f} s: {name}')
    for test, reason in result.skipped:
        print(f'skipped: {test.id()}: {reason}')
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.skipped and len(result.skipped) >= result.testsRun else 0)
