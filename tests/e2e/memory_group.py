"""A memory control group for what a test starts, so that the shared memory which is left over is its
own, whatever else the machine does meanwhile."""

import os
import re
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
    """While it is entered, this process and those that it starts are in a group of their own."""

    def __init__(self, parent, folder, pattern):
        self.parent = parent
        self.folder = folder
        self.pattern = pattern

    @staticmethod
    def enter():
        """None where no group can be made: without the right to, or without the controller."""
        own = _own_group()
        if own is None:
            return None
        parent, pattern = own
        try:
            group = MemoryGroup(parent, tempfile.mkdtemp(prefix='elixir-test-', dir=parent), pattern)
        except OSError:
            return None
        try:
            group._move_to(group.folder)
            group.shmem_bytes()
        except (OSError, AttributeError):  # not to be joined, or not told of memory
            group.leave()
            return None
        return group

    @staticmethod
    def _move_to(folder):
        with open(os.path.join(folder, 'cgroup.procs'), 'w', encoding='ascii') as file:
            file.write(str(os.getpid()))

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
