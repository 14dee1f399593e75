"""What the package's commands share: failures and exit codes. Nothing here needs torch."""

import errno
import importlib
import os
import sys

BAD_ARGUMENT, NO_ROOM, BAD_INPUT, UNAVAILABLE = 2, 3, 4, 5  # docs/errors.md
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)


class Failure(Exception):
    """What you can fix, with the remedy. `exit_code` is the number with which a command ends because of it."""

    def __init__(self, text, exit_code=BAD_INPUT):
        super().__init__(text)
        self.exit_code = exit_code


def need(package, user):
    """The module, or a failure that names the package to install."""
    try:
        return importlib.import_module(package)
    except Exception as missing:  # a broken installation fails with errors of any type
        raise Failure(f'{user} needs {package} ({missing}); install it: pip install {package}',
                      UNAVAILABLE) from missing


def trying(what, call, *arguments, **named):
    """Calls code of others, which fails with errors of any type, Rust's panics among them."""
    try:
        return call(*arguments, **named)
    except (KeyboardInterrupt, SystemExit, Failure):
        raise
    except BaseException as failure:
        raise Failure(f'{what}: {type(failure).__name__}: {failure}') from failure


def run(name, command):
    """The exit code of a command; a failure of it is told on standard error."""
    try:
        command()
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as failure:
        if failure.errno == errno.EPIPE:  # else the interpreter complains once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f'{name}: {failure.filename or "the output"}: {failure.strerror or failure}', file=sys.stderr)
        return NO_ROOM if failure.errno in FULL else BAD_INPUT
    except Exception as failure:
        exit_code = getattr(failure, 'exit_code', None)  # also elixir.Error
        if exit_code is None:
            raise
        print(f'{name}: {failure}', file=sys.stderr)
        return exit_code
