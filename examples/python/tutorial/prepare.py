"""Makes what the tutorial trains: a tiny Llama whose tokens are bytes, and a text."""

import os
import sys

from transformers import LlamaConfig, LlamaForCausalLM, set_seed

folder = sys.argv[1]
set_seed(1)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     max_position_embeddings=128)
LlamaForCausalLM(config).save_pretrained(os.path.join(folder, 'base'))
with open(os.path.join(folder, 'text.txt'), 'w', encoding='utf-8') as file:
    file.write('elixir keeps the states outside, and the model stays as it is. ' * 40)
print('made', *sorted(os.listdir(folder)))
