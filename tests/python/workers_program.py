"""A trainer with four forked workers of a DataLoader, which have its descriptors; it says so and waits."""

import signal

from python_case import net, net_loss  # first: it finds elixir

import torch
import elixir

model = net()
optimizer = elixir.AdamW(model)
net_loss(model, 0).backward()
optimizer.step()
optimizer.synchronize()
loader = torch.utils.data.DataLoader(list(range(1 << 20)), num_workers=4, persistent_workers=True,
                                     multiprocessing_context='fork')
batches = iter(loader)
next(batches)
print(' '.join(str(worker.pid) for worker in batches._workers), flush=True)
while True:  # the workers are stopped, which is a signal to this process
    signal.pause()
