"""Trains, and kills itself where its plan says so. It runs under elixir-run, which starts it again.

kills_program.py trainer|loop FOLDER [--skip-states]: FOLDER/plan.json lists [step, point, rank] of the kills in the
order in which they come. FOLDER/kills has a line for each that came, FOLDER/begins the step from which each start
continued. Rank 0 prints `told {...}` at the end.
"""

import argparse
import json
import os
import signal

from python_case import examples, masters_hash, net, net_loss, small_model, trained  # first: it finds elixir

import torch
import elixir

STEPS, SAVE_EVERY = 32, 4
RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
parser = argparse.ArgumentParser()
parser.add_argument('how')
parser.add_argument('folder')
parser.add_argument('--resume', help='this checkpoint, not the newest')
parser.add_argument('--skip-states', action='store_true', help='a resumed run has the weights alone')
given = parser.parse_args()
KILLS = os.path.join(given.folder, 'kills')
RUN = os.path.join(given.folder, 'run')


if not os.path.exists(KILLS):
    open(KILLS, 'a', encoding='utf-8').close()


def next_kill():
    with open(os.path.join(given.folder, 'plan.json'), encoding='utf-8') as file:
        plan = json.load(file)
    with open(KILLS, encoding='utf-8') as file:
        came = len(file.readlines())
    return plan[came] if came < len(plan) else None


def note_begin(step):
    if RANK == 0:
        with open(os.path.join(given.folder, 'begins'), 'a', encoding='utf-8') as file:
            file.write(f'{step}\n')


kill = next_kill()


def at(point, step):
    """A place where the plan may kill this rank: nothing of it runs any more, not even what is in its buffers."""
    if kill != [step, point, RANK]:
        return
    if point == 'elixird':
        (daemon,) = elixir._status.ask()
        os.kill(daemon['daemon']['pid'], signal.SIGKILL)
    with open(KILLS, 'a', encoding='utf-8') as file:
        file.write(f'{step} {point} {RANK}\n')
    os.kill(os.getpid(), signal.SIGKILL)


def with_trainer():
    import transformers
    model = small_model('llama')
    optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, rcache_blocks=4)
    states = {'step': 0}

    class Kills(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            note_begin(state.global_step)

        def on_step_begin(self, args, state, control, **kwargs):
            states['step'] = state.global_step + 1
            at('elixird', states['step'])

        def on_optimizer_step(self, args, state, control, **kwargs):  # after step(), before anything is saved
            at('step', states['step'])

        def on_save(self, args, state, control, **kwargs):  # after Elixir's: elixird writes
            at('written', state.global_step)

    def forward(_module, _args):
        if model.training:
            at('forward', states['step'])

    model.model.layers[1].register_forward_pre_hook(forward)
    model.model.layers[0].register_full_backward_hook(lambda *_: at('backward', states['step']))
    of_states, of_trainer = transformers.Trainer._save_optimizer_and_scheduler, elixir._saving.save

    def save_optimizer(self, output_dir):  # Trainer's files are there in part
        at('files', self.state.global_step)
        of_states(self, output_dir)

    def save(*args, **kwargs):  # Trainer's files are there, and elixird has not been asked
        at('asked', states['step'])
        return of_trainer(*args, **kwargs)
    transformers.Trainer._save_optimizer_and_scheduler = save_optimizer
    elixir._saving.save = save
    resume = given.resume or (elixir.last_checkpoint(RUN) is not None)  # True: Trainer chooses
    _, _, trainer = trained(model, optimizer, RUN, examples(32 * WORLD), resume=resume, callbacks=[Kills()],
                            max_steps=STEPS, save_strategy='steps', save_steps=SAVE_EVERY, save_total_limit=1,
                            ddp_find_unused_parameters=False)
    return optimizer, trainer.state.global_step


def with_loop():
    torch.manual_seed(1)
    model = net()
    optimizer = elixir.AdamW(model, lr=1e-2, rcache_blocks=2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    last = given.resume or elixir.last_checkpoint(RUN)
    begin = 0
    if last is not None:
        told = elixir.load(optimizer, last, states=not given.skip_states)
        schedule.load_state_dict(json.loads(told['program']))
        begin = schedule.last_epoch
        for group, lr in zip(optimizer.param_groups, schedule.get_last_lr()):
            group['lr'] = lr
    note_begin(begin)
    saving = None
    for step in range(begin + 1, STEPS + 1):
        at('elixird', step)
        loss = net_loss(model, step * WORLD + RANK)
        at('forward', step)
        loss.backward()
        at('backward', step)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        at('step', step)
        if step % SAVE_EVERY == 0:
            if saving is not None:
                saving.wait()
            at('asked', step)
            saving = elixir.save(optimizer, os.path.join(RUN, f'step-{step}'), wait=False,
                                 program=json.dumps(schedule.state_dict()))
            at('written', step)
    saving.wait()
    return optimizer, STEPS


os.makedirs(RUN, exist_ok=True)
trains = with_trainer if given.how == 'trainer' else with_loop
made, steps = trains()
digest = masters_hash(made)  # of all ranks
if RANK == 0:
    print('told ' + json.dumps({'hash': digest, 'steps': steps}), flush=True)
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
