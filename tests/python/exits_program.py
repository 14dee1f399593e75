"""Interpreters that end in all the states in which a program may leave an optimizer: exits_program.py FOLDER COUNT."""

import copy
import os
import sys
import threading

from python_case import net, net_loss  # first: it finds elixir

import torch
import elixir
import warm

STATES = {}


def state(made):
    STATES[made.__name__] = made
    return made


def trained(**options):
    model = net()
    optimizer = elixir.AdamW(model, lr=1e-2, log_plan=False, **options)
    for number in range(2):
        net_loss(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@state
def after_steps():
    return trained()


@state
def before_the_first_forward():
    return elixir.AdamW(net(), log_plan=False)


@state
def in_the_middle_of_a_step():
    model, optimizer = trained()
    loss = net_loss(model, 2)
    loss.backward()
    return model, optimizer, loss


@state
def with_a_graph():
    model, _ = trained()
    return net_loss(model, 2)


@state
def with_a_norm_that_nobody_read():
    model, optimizer = trained()
    net_loss(model, 2).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm


@state
def with_a_save_under_way():
    model, optimizer = trained()
    return model, elixir.save(optimizer, os.path.join(folder, f'saved-{os.getpid()}'), wait=False)


@state
def with_a_scheduler():
    model, optimizer = trained()
    return model, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** step)


@state
def with_a_traceback():
    def fails(model):
        inner = model(torch.ones(2, 16))
        raise ValueError('kept', inner.shape)
    model, _ = trained()
    try:
        fails(model)
    except ValueError as error:
        return error


@state
def with_a_sleeping_thread():
    model, _ = trained()
    begun = threading.Event()
    threading.Thread(target=lambda: (begun.set(), threading.Event().wait(), model), daemon=True).start()
    begun.wait()


@state
def with_a_thread_that_trains():
    model, optimizer = trained()

    def train():
        for number in range(20):
            net_loss(model, number).backward()
            optimizer.step()
            optimizer.zero_grad()
    threading.Thread(target=train).start()  # the interpreter joins it


@state
def with_workers_of_a_loader():
    model, _ = trained()
    loader = torch.utils.data.DataLoader(list(range(64)), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    return model, batches


@state
def in_a_cycle():
    model, optimizer = trained()
    model.__dict__['itself'] = (model, optimizer)


@state
def with_gathered_parameters():
    model, _ = trained(rcache_blocks=4)
    scope = elixir.gathered(model.parameters())
    scope.__enter__()
    return scope


@state
def with_hooks():
    model, _ = trained()
    model.register_forward_hook(lambda module, args, output: output * 1)
    model[0].weight.register_hook(lambda grad: grad)
    model(torch.ones(2, 16))


@state
def with_copies():
    model, _ = trained()
    return copy.deepcopy(model), model.state_dict()


@state
def after_release():
    model, optimizer = trained()
    optimizer.release()
    return model(torch.ones(2, 16))


@state
def with_two_optimizers():
    return trained(), trained()


@state
def under_init():
    with elixir.init():
        model = net()
    optimizer = elixir.AdamW(model, log_plan=False)
    optimizer.start()
    return model


@state
def in_an_evaluation():
    model, _ = trained()
    with torch.no_grad():
        return model(torch.ones(2, 16))


@state
def by_sys_exit():
    model, _ = trained()
    global left
    left = model
    sys.exit(0)


folder, count = sys.argv[1], int(sys.argv[2])
names = list(STATES)
case, _ = warm.each([names[i % len(names)] for i in range(count)], folder)
left = STATES[case]()
