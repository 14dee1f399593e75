"""An adapter (PEFT's LoRA) over a frozen model in BF16: 2 bytes a frozen parameter, in host memory."""

import tempfile

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import elixir

torch.manual_seed(1)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     max_position_embeddings=128)
base = LlamaForCausalLM(config).to(torch.bfloat16)
model = peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=['q_proj', 'v_proj']), autocast_adapter_dtype=False)
optimizer = elixir.AdamW(model, lr=1e-2)
tokens = torch.arange(64).repeat(4, 1)
for step in range(20):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        print(f'step {step + 1} loss {loss.item():.3f}')
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)  # the adapter alone
    print('adapter saved')
