"""Control groups with a quota of processor time, of version 1 or 2."""

import os
import tempfile

PERIOD_US = 100000


def _own_group():
    """The folder of this process's group; None where there is none."""
    with open('/proc/self/cgroup', encoding='ascii') as file:
        lines = [line.rstrip('\n').split(':', 2) for line in file]
    for _, controllers, path in lines:
        if 'cpu' in controllers.split(','):
            return f'/sys/fs/cgroup/{controllers}{path}'
    for number, _, path in lines:
        if number == '0':
            return '/sys/fs/cgroup' + path
    return None


class ProcessorGroup:
    def __init__(self, folder):
        self.folder = folder

    @staticmethod
    def make(processors):
        """A new group that may use so many processors' time. None where none can be made."""
        parent = _own_group()
        if parent is None:
            return None
        try:
            group = ProcessorGroup(tempfile.mkdtemp(prefix='elixir-test-', dir=parent))
        except OSError:
            return None
        quota_us = int(processors * PERIOD_US)
        written = (group._write('cpu.max', f'{quota_us} {PERIOD_US}') or
                   group._write('cpu.cfs_period_us', PERIOD_US) and group._write('cpu.cfs_quota_us', quota_us))
        if not written:
            os.rmdir(group.folder)
            return None
        return group

    def _write(self, name, value):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return False
        try:
            with open(path, 'w', encoding='ascii') as file:
                file.write(str(value))
        except OSError:
            return False
        return True

    def inside(self):
        """The beginning of a command line: what follows runs in the group."""
        return ['sh', '-c', 'echo $$ >"$0" && exec "$@"', os.path.join(self.folder, 'cgroup.procs')]

    def remove(self):
        """After the processes in it have ended."""
        os.rmdir(self.folder)
