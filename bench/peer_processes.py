"""The processes of one run of one system, for bench/peers.py: started, their memory measured, ended."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

MARK = 'ELIXIR_PEERS_RUN'  # in the environment of every process of a run
PSS_SHARE = 0.02  # of one core, at most, goes into measuring memory


class Failure(Exception):
    """Why a system has no figures."""


def text_of(path):
    try:
        return Path(path).read_text(encoding='utf-8', errors='replace')
    except OSError:  # a process that has ended
        return ''


def marked_processes(mark):
    """Pids of a run: whoever their parent is by now, they have its mark in their environment."""
    word = f'{MARK}={mark}\0'
    return [int(name) for name in os.listdir('/proc')
            if name.isdigit() and word in text_of(f'/proc/{name}/environ')]


def pss_bytes(pid):
    """Its own memory and its share of what it has in common with others."""
    match = re.search(r'^Pss:\s+(\d+) kB', text_of(f'/proc/{pid}/smaps_rollup'), re.M)
    return int(match[1]) * 1024 if match else 0


class MemoryMeter:
    """Samples the memory of a run's processes, all together, in a thread; keeps the greatest."""

    def __init__(self, mark):
        self.peak_bytes = 0
        self._mark = mark
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        pause_s = 0
        while not self._stop.wait(pause_s):
            begin = time.thread_time()
            total = sum(pss_bytes(pid) for pid in marked_processes(self._mark))
            self.peak_bytes = max(self.peak_bytes, total)
            # Walking a large process's pages takes a while: the more, the longer the pause.
            pause_s = max(0.05, (time.thread_time() - begin) / PSS_SHARE)


class Run:
    """The processes of one run of one system. Leaving the context ends those that are left."""

    def __init__(self, folder, timeout_s):
        self.folder = Path(folder)
        self.timeout_s = timeout_s
        self.mark = f'{os.getpid()}-{time.monotonic_ns()}'
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()  # elixir-run then ends its ranks and its elixird
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in marked_processes(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, command, environment, processors=None):
        """`processors`: those the process keeps to. It ends with this one, however that ends."""
        bind = ['taskset', '-c', ','.join(map(str, processors))] if processors else []
        command = ['setpriv', '--pdeathsig', 'TERM', *bind, *map(str, command)]
        with open(self.log(len(self.processes)), 'wb') as log:
            self.processes.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environment, MARK: self.mark}))

    def log(self, number):
        return self.folder / f'log.{number}'

    def wait(self):
        """The peak of their memory, once all have ended well."""
        end = time.monotonic() + self.timeout_s
        with MemoryMeter(self.mark) as meter:
            while any(process.poll() is None for process in self.processes):
                self.throw_if_failed()
                if time.monotonic() > end:
                    raise Failure(f'still running after {self.timeout_s:.0f} s; give more --timeout')
                time.sleep(0.05)
        self.throw_if_failed()
        return meter.peak_bytes

    def throw_if_failed(self):
        for number, process in enumerate(self.processes):
            if process.poll():
                lines = text_of(self.log(number)).strip().splitlines() or ['']
                # The program's own word, not what torch or elixir-run say at the end.
                told = [line for line in lines if
                        re.match(r'(\[rank ?\d+\]:? )?(train_gpt2: |[\w.]*(Error|Exception)\b)', line)]
                raise Failure(f'process {number} ended with {process.returncode}: '
                              f'{(told or lines)[-1][:500]}')
