"""Memory control groups for what a test starts, so that the shared memory which is left over is its
own, whatever else the machine does meanwhile."""

import os
import re
import signal
import tempfile


def _own_group():
    """The folder of this process's group, and the file of the line `shmem`; None where there is none."""
    with open('/proc/self/cgroup', encoding='ascii') as file:
        for line in file:
            number, controllers, path = line.rstrip('\n').split(':', 2)
            if 'memory' in controllers.split(','):
                return '/sys/fs/cgroup/memory' + path, r'^total_shmem (\d+)$'
            if number == '0':
                unified = '/sys/fs/cgroup' + path
                if os.path.exists(os.path.join(unified, 'memory.stat')):
                    return unified, r'^shmem (\d+)$'
    return None


class MemoryGroup:
    """A new group. While it is entered, this process and those that it starts are in it."""

    def __init__(self, parent, folder, pattern):
        self.parent = parent
        self.folder = folder
        self.pattern = pattern

    @staticmethod
    def make(beside=None):
        """In this process's group, or beside another one. None where no group can be made: without the
        right to, or without the controller."""
        own = (beside.parent, beside.pattern) if beside else _own_group()
        if own is None:
            return None
        parent, pattern = own
        try:
            group = MemoryGroup(parent, tempfile.mkdtemp(prefix='elixir-test-', dir=parent), pattern)
        except OSError:
            return None
        try:
            group.shmem_bytes()
        except (OSError, AttributeError):  # not told of memory
            os.rmdir(group.folder)
            return None
        return group

    @staticmethod
    def enter():
        """None where none can be made and entered."""
        group = MemoryGroup.make()
        if group is None:
            return None
        try:
            group._move_to(group.folder)
        except OSError:
            group.leave()
            return None
        return group

    @staticmethod
    def _move_to(folder):
        with open(os.path.join(folder, 'cgroup.procs'), 'w', encoding='ascii') as file:
            file.write(str(os.getpid()))

    def limit(self, limit_bytes):
        for name in ('memory.limit_in_bytes', 'memory.max'):  # version 1, version 2
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path, 'w', encoding='ascii') as file:
                    file.write(str(limit_bytes))
                return
        raise OSError(f'{self.folder} has no limit of memory')

    def inside(self):
        """The beginning of a command line: what follows runs in the group."""
        return ['sh', '-c', 'echo $$ >"$0" && exec "$@"', os.path.join(self.folder, 'cgroup.procs')]

    def pids(self):
        with open(os.path.join(self.folder, 'cgroup.procs'), encoding='ascii') as file:
            return [int(line) for line in file]

    def kill(self):
        """SIGKILL to all that are in it, as a scheduler ends a job: until nobody is."""
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def shmem_bytes(self):
        """Shared memory, tmpfs files included, of which a process in the group touched a page first
        and which is not freed. It counts though no process shows it any more."""
        with open(os.path.join(self.folder, 'memory.stat'), encoding='ascii') as file:
            return int(re.search(self.pattern, file.read(), re.M).group(1))

    def leave(self):
        """After the processes in it have ended."""
        try:
            self._move_to(self.parent)
            os.rmdir(self.folder)
        except OSError:  # a process that a failed test left: the group goes with the machine
            pass
