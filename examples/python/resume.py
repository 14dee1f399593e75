"""A Trainer that is stopped and resumed: the second run ends with the same weights as one that never stopped."""

import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import elixir


def train(folder, resume=None):
    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64))
    rows = torch.randint(0, 256, (64, 32), generator=torch.Generator().manual_seed(2))
    data = [{'input_ids': row, 'labels': row} for row in rows]
    arguments = TrainingArguments(folder, max_steps=20, per_device_train_batch_size=4, save_steps=10, report_to=[],
                                  disable_tqdm=True, seed=1)
    optimizer = elixir.AdamW(model, lr=1e-3)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    return model.state_dict()


with tempfile.TemporaryDirectory() as folder:
    whole = train(folder)
    resumed = train(folder, os.path.join(folder, 'checkpoint-10'))
    print('equal to the bit:', all(torch.equal(value, resumed[name]) for name, value in whole.items()))
