"""A rank's trainings, one after the other, for ranks_test.py: prints a line of JSON for each on rank 0.

    ranks_program.py CASES     CASES: JSON, a list of what run_case() takes
"""

import gc
import json
import os
import sys

import python_case
import torch
from python_case import WAYS, masters_hash, small_model, trained

RANK = int(os.environ['RANK'])


def run_case(which, kind, folder, way='plain', exchange=None, dtype='float32', save=False, resume=None):
    """`which`: torch or elixir. What the test compares, on rank 0."""
    model = small_model(kind, getattr(torch, dtype))
    if which == 'torch':
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    else:
        import elixir
        optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, exchange=exchange, rcache_blocks=4)
    arguments = {**WAYS[way], **({'save_strategy': 'steps', 'save_steps': 10} if save else {})}
    losses, norms, trainer = trained(model, optimizer, folder, resume=resume, ddp_find_unused_parameters=False,
                                     **arguments)
    told = {'losses': losses, 'norms': norms, 'wrapped': type(trainer.model_wrapped).__name__}
    if which == 'elixir':
        told['hash'] = masters_hash(optimizer)
        if RANK == 0:  # alone: what save_pretrained() does
            path = os.path.join(folder, 'alone')
            model.save_pretrained(path)
            read = type(model).from_pretrained(path)
            told['saved_equal'] = all(torch.equal(value, read.state_dict()[name])
                                      for name, value in model.state_dict().items())
    return told


for case in json.loads(sys.argv[1]):
    line = 'told ' + json.dumps(run_case(**case))
    if RANK == 0:
        print(line, flush=True)
    gc.collect()
    torch.distributed.barrier()
torch.distributed.destroy_process_group()  # else torch's threads may outlive what they use
