"""Fine-tunes the model of a folder with Hugging Face's Trainer, on the bytes of a text.

    python train.py MODEL TEXT RUN [--steps 200] [--bf16]

Started again, it resumes from the newest checkpoint in RUN.
"""

import argparse
import os

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

import elixir

parser = argparse.ArgumentParser()
for name in ('model', 'text', 'run'):
    parser.add_argument(name)
parser.add_argument('--steps', type=int, default=200)
parser.add_argument('--bf16', action='store_true')
given = parser.parse_args()

set_seed(1)
model = AutoModelForCausalLM.from_pretrained(given.model, dtype='auto')
with open(given.text, 'rb') as file:
    tokens = torch.tensor(list(file.read()))  # a token is a byte
data = [{'input_ids': row, 'labels': row} for row in tokens.unfold(0, 64, 16)]

optimizer = elixir.AdamW(model, lr=1e-2, weight_decay=0.01)
arguments = TrainingArguments(
    given.run, max_steps=given.steps, per_device_train_batch_size=8, bf16=given.bf16, max_grad_norm=1.0, warmup_steps=20,
    logging_steps=20, save_steps=50, save_total_limit=2, enable_jit_checkpoint=True, report_to=[], disable_tqdm=True,
    use_cpu=not torch.cuda.is_available())
trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
newest = elixir.last_checkpoint(given.run)
trainer.train(resume_from_checkpoint=newest)
trainer.save_model(os.path.join(given.run, 'model'))
if trainer.is_world_process_zero():
    print(f'resumed from {newest}' if newest else 'trained from the start', 'to step', trainer.state.global_step)
