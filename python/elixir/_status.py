"""What elixird does now."""

import json
import os
import subprocess
import time
from typing import Any

from elixir._load import BIN, Error


def ask():
    """The status of every elixird of this user on this node, as `elixirctl status --json` prints it."""
    program = os.path.join(BIN, 'elixirctl')
    done = subprocess.run([program, 'status', '--json'], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip() or f'{program} status ended with {done.returncode}')
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]  # a line for each elixird


def text():
    return subprocess.run([os.path.join(BIN, 'elixirctl'), 'status'], capture_output=True, text=True, check=False).stdout


def status(live: bool = False, every_s: float = 1.0) -> list[dict[str, Any]]:
    """Prints the jobs of every elixird of this user on this node, their rates and their memory.

    Args:
        live: draws again every `every_s` seconds until Ctrl-C (needs rich: pip install 'elixir-train[live]').
            It works in a terminal and in a notebook.
        every_s: seconds between two looks.

    Returns:
        A list with a dictionary for each elixird, as `elixirctl status --json` prints it.

    Raises:
        elixir.Error: elixirctl fails.
        ImportError: live=True without rich.
    """
    found = ask()
    if not live:
        print(text())
        return found
    from rich.live import Live  # noqa: PLC0415  (an extra)
    from rich.text import Text  # noqa: PLC0415
    with Live(Text(text()), auto_refresh=False) as screen:
        try:
            while True:
                time.sleep(every_s)
                screen.update(Text(text()), refresh=True)
        except KeyboardInterrupt:
            return found
