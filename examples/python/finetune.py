"""Fine-tunes a language model with Hugging Face's Trainer, on data and a tiny Llama that it makes itself.

    python examples/python/finetune.py [--torch]     --torch: torch.optim.AdamW in Elixir's place
"""

import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

TEXT = 'elixir keeps the states outside, and the model stays as it is. ' * 40
LENGTH = 64

set_seed(1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, max_position_embeddings=128))
tokens = torch.tensor(list(TEXT.encode()))  # a token is a byte
data = [{'input_ids': row, 'labels': row} for row in tokens.unfold(0, LENGTH, 16)]

if '--torch' in sys.argv:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
else:
    import elixir
    optimizer = elixir.AdamW(model, lr=5e-3, weight_decay=0.01)

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=80, per_device_train_batch_size=8, learning_rate=5e-3,
                                  logging_steps=20, save_strategy='no', report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()
    model.save_pretrained(folder)
    read = LlamaForCausalLM.from_pretrained(folder)

start = torch.tensor([list(b'elixir keeps')])
with torch.no_grad():
    print('says:', bytes(read.generate(start, max_new_tokens=30, do_sample=False, pad_token_id=0)[0].tolist()).decode())
print('losses:', *(round(entry['loss'], 5) for entry in trainer.state.log_history if 'loss' in entry))
