"""Which checkpoint is complete. A killed run may leave folders that are not."""

import fcntl
import json
import os
import shutil
import time

import torch

FOLDER = 'elixir'                      # in a checkpoint of Trainer or accelerate, with the states
UNFINISHED = 'elixir.unfinished'       # a file there while FOLDER may be missing or old
MANIFEST = 'elixir.json'
LOCK = '.elixir-lock'                  # elixird holds it while it writes
LOOK_S = 0.05


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in a folder.

        last = elixir.last_checkpoint("run")
        if last is not None:
            elixir.load(optimizer, last)

    It finds what elixir.save() has written with states, and checkpoints of Trainer. Folders of a save that was
    killed are passed over. If elixird still writes there, it waits for that. After init_process_group() all ranks
    get rank 0's answer, and all of them call it.

    Args:
        folder: of the run; it need not exist yet.

    Returns:
        The path, or None.
    """
    folder = os.path.abspath(os.fspath(folder))
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return newest(folder)
    told = [newest(folder) if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(told)
    return told[0]


def newest(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    await_writers(folder)
    for name in names:
        await_writers(os.path.join(folder, name))
    names = os.listdir(folder) if os.path.isdir(folder) else []  # with those that have come by now
    steps = {name: step_of(os.path.join(folder, name)) for name in names}
    complete = [name for name in names if steps[name] is not None]
    return os.path.join(folder, max(complete, key=lambda name: (steps[name], name))) if complete else None


def step_of(path):
    """The step of a complete checkpoint with states; None: it is not one."""
    for manifest in (os.path.join(path, MANIFEST), os.path.join(path, FOLDER, MANIFEST)):
        try:
            with open(manifest, encoding='utf-8') as file:
                said = json.load(file)['manifest']
        except (OSError, ValueError, KeyError):
            continue
        return said['step'] if said.get('optimizer_states') else None
    return None


def await_writers(folder):
    """Waits while elixird writes a checkpoint into the folder. It finishes the last one of a killed job."""
    def writes():
        try:
            return any('.tmp-' in name for name in os.listdir(folder))
        except OSError:
            return False  # a file, or gone
    while writes():
        try:
            lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # nobody has held it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return  # whoever wrote there is dead
        except OSError:
            time.sleep(LOOK_S)
        finally:
            os.close(lock)


def is_unfinished(path):
    """Whether a checkpoint of Trainer was begun with an elixir optimizer and has no states yet."""
    return os.path.exists(os.path.join(path, UNFINISHED)) and not os.path.exists(os.path.join(path, FOLDER, MANIFEST))


def begin(path, rank):
    """Before Trainer writes a checkpoint: until FOLDER is there, the checkpoint is not complete."""
    if rank == 0:
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, UNFINISHED), 'wb'):
            pass
        make_room(path)
    meet()


def make_room(path):
    """A run that was resumed from an earlier checkpoint writes later ones again, as Trainer does with its files."""
    place = os.path.join(path, FOLDER)
    if os.path.isdir(place):
        shutil.rmtree(place)


def end(path):
    """FOLDER is complete."""
    try:
        os.remove(os.path.join(path, UNFINISHED))
    except FileNotFoundError:
        pass


def meet():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
