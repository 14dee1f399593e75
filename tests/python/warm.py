"""Many interpreters that end in earnest, without an import of torch in each.

A program calls each() at its top level, once it has imported what its cases need. Each case runs in a fork of it,
for which each() returns; where the program ends there, the interpreter ends as always: atexit, modules, static
destructors. The parent prints a line for each case, {"case", "codes", "output"}, and ends.
"""

import json
import os
import signal
import sys
import time

import torch

LIMIT_S = 60
LOOK_S = 0.01


def each(cases, folder, ranks=1):
    """In a fork: (case, rank). The ranks of a case run at the same time; ranks above 0 end with rank 0, by SIGKILL."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # what torch imports for the first optimizer
    for number, case in enumerate(cases):
        paths = [os.path.join(folder, f'output-{number}-{rank}') for rank in range(ranks)]
        pids = []
        for rank in range(ranks):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                begin(paths[rank], f'case-{number}', rank, ranks)
                return case, rank
            pids.append(pid)
        codes = [end(pids[0])]
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)
            codes.append(end(pid))
        output = ''
        for path in paths:
            with open(path, encoding='utf-8', errors='replace') as file:
                output += file.read()
        print(json.dumps({'case': case, 'codes': codes, 'output': output}), flush=True)
    sys.exit(0)


def begin(path, job, rank, ranks):
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(ELIXIR_JOB=job, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                      LOCAL_WORLD_SIZE=str(ranks))


def end(pid):
    """The exit code, or minus the signal; 'hung' after the limit."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_S)  # cannot fail by chance: it polls
    os.kill(pid, signal.SIGABRT)
    os.waitpid(pid, 0)
    return 'hung'
