"""A rank's training, for ranks_test.py: prints one line of JSON on rank 0.

    ranks_program.py torch|elixir KIND FOLDER [--exchange E] [--dtype D] [--save] [--resume FOLDER] [--read-alone]
"""

import argparse
import json
import os

import python_case
import torch
from python_case import masters_hash, small_model, trained

parser = argparse.ArgumentParser()
parser.add_argument('which')
parser.add_argument('kind')
parser.add_argument('folder')
parser.add_argument('--exchange')
parser.add_argument('--dtype', default='float32')
parser.add_argument('--save', action='store_true')
parser.add_argument('--resume')
given = parser.parse_args()
rank = int(os.environ['RANK'])

model = small_model(given.kind, getattr(torch, given.dtype))
if given.which == 'torch':
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
else:
    import elixir
    optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, exchange=given.exchange, rcache_blocks=4)
arguments = {'save_strategy': 'steps', 'save_steps': 10} if given.save else {}
losses, norms, trainer = trained(model, optimizer, given.folder, resume=given.resume,
                                 ddp_find_unused_parameters=False, **arguments)
told = {'losses': losses, 'norms': norms, 'wrapped': type(trainer.model_wrapped).__name__}
if given.which == 'elixir':
    told['hash'] = masters_hash(optimizer)
    if rank == 0:  # alone: what save_pretrained() does
        path = os.path.join(given.folder, 'alone')
        model.save_pretrained(path)
        read = type(model).from_pretrained(path)
        told['saved_equal'] = all(torch.equal(value, read.state_dict()[name])
                                  for name, value in model.state_dict().items())
if rank == 0:
    print('told ' + json.dumps(told), flush=True)
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # else torch's threads may outlive what they use
