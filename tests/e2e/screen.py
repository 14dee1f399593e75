"""A terminal of 80 columns, as a person has it: tmux runs a command in it and tells what it shows."""

import itertools
import os
import shlex
import subprocess

from harness import wait_until

COLUMNS, ROWS = 80, 200
NUMBERS = itertools.count()
DONE = 'the command has ended'


class Screen:
    """One terminal. `close` it: its server is a process of its own."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.socket = ''
        self.environment = {**environment, 'TERM': 'xterm', 'LC_ALL': 'C.UTF-8'}

    def tmux(self, *words):
        return subprocess.run(['tmux', '-S', self.socket, '-f', '/dev/null', *words], env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout

    def show(self, *command, limit_s=120):
        """The lines that the terminal shows once the command has ended. A line that was too long for the
        terminal is one line here, longer than COLUMNS."""
        # A server that was told to end may still hold its socket.
        self.socket = os.path.join(self.folder, f'tmux-{next(NUMBERS)}')
        words = ' '.join(shlex.quote(str(word)) for word in command)
        # The shell stays: a session that ends takes its screen along.
        self.tmux('new-session', '-d', '-x', str(COLUMNS), '-y', str(ROWS),
                  f'sh -c {shlex.quote(f"{words}; echo; echo {DONE}; exec sleep 1000000")}')
        try:
            text = wait_until(lambda: DONE in (seen := self.tmux('capture-pane', '-p', '-J')) and seen, words, limit_s)
        finally:
            self.close()
        return [line.rstrip() for line in text[:text.index(DONE)].rstrip().splitlines()]

    def close(self):
        self.tmux('kill-server')
