"""Two nodes on one machine, for tests: two network namespaces joined by a cable that can be cut.

    with two_nodes.TwoNodes() as nodes:
        subprocess.run(nodes.command(1, 'hostname', '-f'))

Node 0 is called node-a and node 1 node-b, and each name resolves on both; on the node itself to
127.0.1.1, as Debian has it. Processes, files and memory are shared as ever. Needs root and
iproute2; unavailable() says why it cannot be done.
"""

import os
import shutil
import subprocess

NAMES = ('node-a', 'node-b')
ADDRESSES = ('10.213.77.1', '10.213.77.2')


def unavailable():
    """None, or why there can be no two nodes here."""
    if os.geteuid() != 0:
        return 'network namespaces need root'
    for tool in ('ip', 'unshare'):
        if shutil.which(tool) is None:
            return f'there is no {tool}: scripts/setup.sh installs it'
    try:
        with TwoNodes():
            return None
    except subprocess.CalledProcessError as failure:
        return f'{" ".join(failure.cmd)}: {failure.stderr.strip()}'


class TwoNodes:
    _made = 0

    def __init__(self):
        TwoNodes._made += 1
        self._spaces = [f'elixir-{os.getpid()}-{TwoNodes._made}-{node}' for node in (0, 1)]
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def command(self, node, *words):
        """The command line that runs `words` on a node."""
        return ['ip', 'netns', 'exec', self._spaces[node], 'unshare', '--uts', 'sh', '-c',
                'hostname "$0" && exec "$@"', NAMES[node], *words]

    def cut(self):
        """Pulls the cable: packets are lost, and nobody is told."""
        self._ip('-n', self._spaces[1], 'link', 'set', 'cable', 'down')

    def mend(self):
        self._ip('-n', self._spaces[1], 'link', 'set', 'cable', 'up')

    def close(self):
        """Removes the namespaces; their processes, if any are left, lose their network."""
        for space in self._spaces:
            subprocess.run(['ip', 'netns', 'del', space], capture_output=True, check=False)
            shutil.rmtree(self._folder(space), ignore_errors=True)

    @staticmethod
    def _ip(*words):
        subprocess.run(['ip', *words], check=True, capture_output=True, text=True)

    @staticmethod
    def _folder(space):
        return os.path.join('/etc/netns', space)  # `ip netns exec` mounts its files over /etc

    def _make(self):
        for node, space in enumerate(self._spaces):
            os.makedirs(self._folder(space))
            with open(os.path.join(self._folder(space), 'hosts'), 'w', encoding='ascii') as file:
                file.write('127.0.0.1 localhost\n')
                for other, name in enumerate(NAMES):
                    file.write(f'{"127.0.1.1" if other == node else ADDRESSES[other]} {name}\n')
            self._ip('netns', 'add', space)
            self._ip('-n', space, 'link', 'set', 'lo', 'up')
        self._ip('-n', self._spaces[0], 'link', 'add', 'cable', 'type', 'veth', 'peer', 'name',
                 'cable', 'netns', self._spaces[1])
        for space, address in zip(self._spaces, ADDRESSES):
            self._ip('-n', space, 'addr', 'add', f'{address}/24', 'dev', 'cable')
            self._ip('-n', space, 'link', 'set', 'cable', 'up')
