"""Trains the model of a folder whose weights are never in this process as a whole, then continues a text with it."""

import sys

import torch
from transformers import AutoModelForCausalLM

import elixir

folder, text = sys.argv[1:]
model = elixir.hf.from_pretrained(AutoModelForCausalLM, folder)
print('before the optimizer:', model.lm_head.weight.device)

optimizer = elixir.AdamW(model, lr=1e-4, gpu_memory='16MiB')
with open(text, 'rb') as file:
    tokens = torch.tensor(list(file.read(512))).view(8, 64)
for step in range(3):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f'step {step + 1} loss {loss.item():.3f}')
print(optimizer.plan)

start = torch.tensor([list(b'elixir keeps')])
with torch.no_grad():
    made = model.generate(start, max_new_tokens=30, do_sample=False, pad_token_id=0)[0]
print(bytes(made.tolist()).decode(errors='replace'))
elixir.status()
