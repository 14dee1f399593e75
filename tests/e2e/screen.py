"""A terminal of 80 columns, as a person has it: tmux runs a command in it and tells what it shows."""

import itertools
import os
import shlex
import subprocess

from harness import wait_until

COLUMNS, ROWS = 80, 200
NUMBERS = itertools.count()
DONE = 'the command has ended'


def lines_shown(folder, environment, *command, limit_s=120):
    """The lines that a terminal shows once the command has ended. A line that was too long for the terminal is
    one line here, longer than COLUMNS. The terminal's server ends soon after."""
    # One that was told to end may still hold its socket.
    socket = os.path.join(folder, f'tmux-{next(NUMBERS)}')

    def tmux(*words):
        return subprocess.run(['tmux', '-S', socket, '-f', '/dev/null', *words],
                              env={**environment, 'TERM': 'xterm', 'LC_ALL': 'C.UTF-8'}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=True).stdout

    words = ' '.join(shlex.quote(str(word)) for word in command)
    # The shell stays: a session that ends takes its screen along.
    tmux('new-session', '-d', '-x', str(COLUMNS), '-y', str(ROWS),
         f'sh -c {shlex.quote(f"{words}; echo; echo {DONE}; exec sleep 1000000")}')
    try:
        text = wait_until(lambda: DONE in (seen := tmux('capture-pane', '-p', '-J')) and seen, words, limit_s)
    finally:
        tmux('kill-server')
    return [line.rstrip() for line in text[:text.index(DONE)].rstrip().splitlines()]
