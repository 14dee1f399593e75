"""Each family that --init takes computes what transformers computes: a folder of theirs and one of
ours continue tokens alike in both, with epsilons, bases and widths that are nobody's default."""

import json
import os
import random
import struct

import foreign_test  # with the Python that has transformers
import harness
import torch
import transformers
from harness import program
from transformers import AutoModelForCausalLM

PROMPT, LENGTH = [5, 17, 200, 3], 24
NO_TOKENS = {'bos_token_id': None, 'eos_token_id': None, 'pad_token_id': None}
LLAMA = {'vocab_size': 300, 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 3,
         'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 64, 'rms_norm_eps': 3e-3,
         'initializer_range': 0.2, **NO_TOKENS}
NEOX = {'vocab_size': 300, 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 3,
        'num_attention_heads': 4, 'max_position_embeddings': 64, 'layer_norm_eps': 3e-3, 'initializer_range': 0.2,
        **NO_TOKENS}
ROPE = {'rope_parameters': {'rope_type': 'default', 'rope_theta': 500.0}}
CONFIGS = {
    'gpt2': transformers.GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=3, n_head=4,
                                    layer_norm_epsilon=1e-2, initializer_range=0.2, **NO_TOKENS),
    'opt': transformers.OPTConfig(vocab_size=300, hidden_size=64, num_hidden_layers=3, ffn_dim=96,
                                  max_position_embeddings=64, num_attention_heads=4, init_std=0.2, **NO_TOKENS),
    'llama': transformers.LlamaConfig(**LLAMA, **ROPE),
    'llama_tied': transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, head_dim=32),
    'mistral': transformers.MistralConfig(**LLAMA, sliding_window=None),
    'qwen2': transformers.Qwen2Config(**LLAMA, **ROPE),
    'qwen3': transformers.Qwen3Config(**LLAMA, head_dim=32),
    'gemma': transformers.GemmaConfig(**LLAMA, head_dim=32),
    'olmo2': transformers.Olmo2Config(**LLAMA, **ROPE),
    'smollm3': transformers.SmolLM3Config(**LLAMA, no_rope_layers=[1, 0, 1]),
    'granite': transformers.GraniteConfig(**LLAMA, embedding_multiplier=3.0, attention_multiplier=0.1,
                                          residual_multiplier=0.4, logits_scaling=2.0),
    'gpt_neox': transformers.GPTNeoXConfig(**NEOX, hidden_act='gelu'),
    'gpt_neox_in_a_row': transformers.GPTNeoXConfig(**NEOX, use_parallel_residual=False, rotary_pct=1.0),
    'phi': transformers.PhiConfig(**NEOX, num_key_value_heads=2),
}

# The file that tests/planner/config_fields_test.cpp reads; what its rows do not hold has no meaning for a model.
DEFAULTS = os.path.join(harness.REPOSITORY, 'tests', 'planner', 'transformers_defaults.json')
NAMES_ALONE = {'transformers_version', 'id2label', 'label2id'}


def theirs(model):
    """What it continues the prompt with, the likeliest token each time."""
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(LENGTH):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ','.join(map(str, tokens[0].tolist()))


class ForeignFamilies(harness.ElixirTest):
    def ours(self, folder):
        finished = self.succeed(program('elixir-generate'), folder, '--tokens', ','.join(map(str, PROMPT)), '--length',
                                str(LENGTH), '--temperature', '0')
        return finished.output.strip()

    def test_the_defaults_of_fields_are_those_of_transformers(self):
        with open(DEFAULTS, encoding='utf-8') as file:
            table = json.load(file)
        for row in table:
            sizes = dict(row['file'])
            with self.subTest(sizes=sizes):
                theirs = transformers.CONFIG_MAPPING[sizes.pop('model_type')](**sizes).to_dict()
                # As the file would be read, where lists and numbers are those of JSON.
                theirs = json.loads(json.dumps(theirs))
                self.assertEqual({name: value for name, value in theirs.items()
                                  if name not in row['file'] and name not in NAMES_ALONE}, row['defaults'])

    def test_each_continues_as_transformers_does_before_and_after_training(self):
        daemon = self.start_elixird()
        data = os.path.join(self.folder, 'data.bin')
        with open(data, 'wb') as file:
            file.write(struct.pack('<5000H', *(random.randrange(300) for _ in range(5000))))
        for name, config in CONFIGS.items():
            with self.subTest(family=name):
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(config).eval().float()
                folder, trained = os.path.join(self.folder, name), os.path.join(self.folder, f'{name}-trained')
                model.save_pretrained(folder)
                before = theirs(model)
                self.assertEqual(self.ours(folder), before)
                self.succeed(program('elixir-train'), '--init', folder, '--lr', '1e-2', '--steps', '3',
                             '--warmup-steps', '0', '--batch', '2', '--seq', '32', '--data', data,
                             '--tokens-dtype', 'uint16', '--checkpoints',
                             trained, '--threads', '1')
                opened, told = AutoModelForCausalLM.from_pretrained(os.path.join(trained, 'step-000000003'),
                                                                    output_loading_info=True)
                self.assertFalse(any(told.values()), told)
                after = theirs(opened.eval())
                self.assertEqual(self.ours(trained), after)
                self.assertNotEqual(after, before, 'nothing was trained')
        self.expect_config_counts(os.path.join(self.folder, 'llama'))
        self.stop_elixird(daemon)

    def expect_config_counts(self, folder):
        """The control: what the two agree on depends on these fields."""
        path = os.path.join(folder, 'config.json')
        config = json.loads(harness.text_of(path))
        expected = self.ours(folder)
        for change in ({'rms_norm_eps': 1e-6}, {'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e5}}):
            with open(path, 'w', encoding='utf-8') as file:
                json.dump({**config, **change}, file)
            self.assertNotEqual(self.ours(folder), expected, str(change))


if __name__ == '__main__':
    assert foreign_test.PYTHON
    harness.main()
