"""A loop of one's own: a scheduler, clipping, accumulation, and a checkpoint."""

import os
import tempfile

import torch

import elixir

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
optimizer = elixir.AdamW(model, lr=1e-2, accumulate=2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
for step in range(30):
    for micro_batch in range(2):
        inputs = torch.randn(16, 32)
        loss = (model(inputs) - inputs[:, :8]).square().mean() / 2
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        print(f'step {step + 1} loss {2 * loss.item():.4f} norm {norm.item():.4f}')

with tempfile.TemporaryDirectory() as folder:
    report = elixir.save(optimizer, os.path.join(folder, 'saved'))
    print(f'saved step {report["step"]}, {report["bytes"]} bytes')
    print('resumed at step', elixir.load(optimizer, os.path.join(folder, 'saved'))['step'])
