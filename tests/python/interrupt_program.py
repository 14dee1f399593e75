"""Rank 0 makes a call that waits for rank 1, which never comes, and Ctrl-C ends the wait.

interrupt_program.py FOLDER [CALL...]: a line of warm.each() for each call.
"""

import json
import os
import signal
import sys
import threading
import time

from python_case import net, net_loss  # first: it finds elixir

import torch
import elixir
import warm

CALLS = ('start', 'forward', 'backward', 'step', 'outcome', 'norm', 'synchronize', 'value', 'state_dict', 'release',
         'save', 'saving', 'load', 'set_parameters', 'uncaught', 'caught')
STARTS = ('start',)                                    # rank 1 does not even start
ENDS = ('load', 'set_parameters', 'release')           # which cannot be made again
ONCE = ('save', 'caught')                              # after which the program ends as any other
ASLEEP = 10                                            # times in a row that the main thread is seen asleep
folder, *chosen = sys.argv[1:]
call, rank = warm.each(chosen or CALLS, folder, ranks=2)
sent_s = [0.0]


def interrupt():
    """SIGINT to this process once its main thread has been asleep for a while: it waits in Elixir."""
    seen = 0
    while seen < ASLEEP:
        time.sleep(0.02)  # cannot fail by chance: it polls
        with open(f'/proc/self/task/{os.getpid()}/stat', encoding='ascii') as file:
            seen = seen + 1 if file.read().rpartition(')')[2].split()[0] == 'S' else 0
    sent_s[0] = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(made):
    """Makes the call, which is interrupted: the seconds from the signal to the exception; None: there was none."""
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        made()
    except KeyboardInterrupt:
        return time.monotonic() - sent_s[0]
    return None


def error_of(made):
    try:
        made()
    except elixir.Error as error:
        return str(error)
    return None


model = net()
options = {'update': 'sync'} if call == 'step' else {}
optimizer = elixir.AdamW(model, lr=1e-2, **options)
if rank == 1 and call in STARTS:
    signal.pause()
if call not in STARTS:
    optimizer.start()
if rank == 1:
    signal.pause()

saved = os.path.join(folder, 'saved')
norm = None
if call not in STARTS + ENDS + ('backward', 'step', 'save', 'saving'):
    net_loss(model, 0).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
if call == 'backward':
    net_loss(model, 0).backward()
if call == 'step':
    net_loss(model, 0).backward()
if call == 'saving':
    saving = elixir.save(optimizer, saved, wait=False)
if call == 'load':
    os.makedirs(saved, exist_ok=True)
    from safetensors.torch import save_file
    save_file({name: torch.zeros(value.shape) for name, value in model.named_parameters()},
              os.path.join(saved, 'model.safetensors'))
made = {
    'start': optimizer.start,
    'forward': lambda: model(torch.ones(2, 16)),
    'backward': lambda: net_loss(model, 1).backward(),
    'step': optimizer.step,
    'outcome': optimizer.outcome,
    'norm': lambda: norm.item(),
    'synchronize': optimizer.synchronize,
    'value': lambda: optimizer.value(model[0].weight),
    'state_dict': model.state_dict,
    'release': optimizer.release,
    'save': lambda: elixir.save(optimizer, saved),
    'saving': lambda: saving.wait(),
    'load': lambda: elixir.load(optimizer, saved),
    'set_parameters': lambda: optimizer.set_parameters({'0.bias': torch.ones(32)}),
    'uncaught': optimizer.synchronize,
    'caught': optimizer.synchronize,
}[call]
if call == 'uncaught':
    threading.Thread(target=interrupt, daemon=True).start()
    made()
told = {'seconds': [interrupted(made)]}
if call in ENDS:
    told['error'] = error_of(optimizer.step)
elif call == 'backward':
    told['error'] = error_of(optimizer.step)
elif call not in ONCE:
    told['seconds'].append(interrupted(made))
print('told ' + json.dumps(told), flush=True)
