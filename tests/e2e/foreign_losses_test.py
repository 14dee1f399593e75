"""The models that people fine-tune, from folders that transformers wrote: the first losses of elixir-train are
transformers' own, with the vocabulary of the real model and rescaled positions, and what elixir-train exports has
in transformers the logits that it has here."""

import json
import os

import foreign_test  # with the Python that has transformers
import harness
import numpy
import torch
import transformers
from harness import NIGHTLY, program, text_of
from transformers import AutoModelForCausalLM

SEQ, STEPS, RATE, CLOSE = 96, 5, 3e-3, 1e-4
DEVICE = os.environ.get('ELIXIR_FOREIGN_DEVICE', 'cpu')  # of both; gpu_check.sh says cuda
SIZES = {'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2, 'num_attention_heads': 4,
         'num_key_value_heads': 2, 'max_position_embeddings': 128, 'initializer_range': 0.3, 'pad_token_id': None}
GEMMA = {**SIZES, 'head_dim': 16, 'query_pre_attn_scalar': 24, 'sliding_window': 40, 'pad_token_id': 0}
LLAMA3 = {'rope_type': 'llama3', 'factor': 32.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
          'original_max_position_embeddings': 16, 'rope_theta': 500000.0}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32, 'rope_theta': 1000.0}
LINEAR = {'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 1000.0}
DYNAMIC = {'rope_type': 'dynamic', 'factor': 4.0, 'rope_theta': 1000.0}


def llama(vocabulary=300, **more):
    return transformers.LlamaConfig(**{**SIZES, 'vocab_size': vocabulary, **more})


def mistral(**more):
    return transformers.MistralConfig(**{**SIZES, 'vocab_size': 300, **more})


def qwen(kind, vocabulary=300, **more):
    return kind(**{**SIZES, 'vocab_size': vocabulary, **more})


# The vocabularies of Llama 3, Qwen 2 and 3, Gemma 2 and 3.
REAL = {
    'llama-3': llama(128256, rope_parameters=LLAMA3),
    'qwen2': qwen(transformers.Qwen2Config, 151936, rope_parameters=YARN),
    'qwen3': qwen(transformers.Qwen3Config, 151936, head_dim=16, rope_parameters=YARN, tie_word_embeddings=True),
    'gemma2': transformers.Gemma2Config(**GEMMA, vocab_size=256000, rope_parameters=LINEAR),
    'gemma3': transformers.Gemma3TextConfig(
        **{**GEMMA, 'num_hidden_layers': 3}, vocab_size=262144, final_logit_softcapping=20.0,
        layer_types=['sliding_attention', 'full_attention', 'sliding_attention'],
        rope_parameters={'full_attention': LINEAR, 'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0}}),
}
# Each field that changes what is computed, once.
SMALL = {
    'llama-linear': llama(rope_parameters=LINEAR, attention_bias=True, mlp_bias=True),
    'llama-dynamic': llama(rope_parameters=DYNAMIC, max_position_embeddings=48),
    'llama-yarn': llama(rope_parameters={**YARN, 'mscale': 1.5, 'mscale_all_dim': 0.5, 'truncate': False}),
    'llama-yarn-null': llama(rope_parameters={**YARN, 'truncate': None}),
    'llama-tied': llama(tie_word_embeddings=True, pad_token_id=5, rope_parameters=LLAMA3),
    'mistral-window': mistral(sliding_window=20, rope_parameters={**YARN, 'attention_factor': 1.3, 'beta_fast': 8}),
    'qwen2-window': qwen(transformers.Qwen2Config, use_sliding_window=True, sliding_window=16, max_window_layers=1,
                         rope_parameters=LINEAR),
    'qwen3-bias': qwen(transformers.Qwen3Config, attention_bias=True, rope_parameters=DYNAMIC, head_dim=16,
                       max_position_embeddings=48),
    'gemma2-uncapped': transformers.Gemma2Config(**GEMMA, vocab_size=300, attn_logit_softcapping=None,
                                                 final_logit_softcapping=None, rope_parameters=YARN),
    'gemma3-llama3': transformers.Gemma3TextConfig(
        **GEMMA, vocab_size=300, attention_bias=True, layer_types=['sliding_attention', 'full_attention'],
        rope_parameters={'full_attention': LLAMA3, 'sliding_attention': {**LINEAR, 'factor': 2.0}}),
    # transformers takes 'truncate' beside the two descriptions, and not in them.
    'gemma3-yarn': transformers.Gemma3TextConfig(
        **GEMMA, vocab_size=300, layer_types=['sliding_attention', 'full_attention'],
        rope_parameters={'full_attention': {**YARN, 'truncate': False},
                         'sliding_attention': {**YARN, 'factor': 2.0, 'truncate': False}}),
    'gemma3-yarn-outer': transformers.Gemma3TextConfig(
        **GEMMA, vocab_size=300, layer_types=['sliding_attention', 'full_attention'],
        rope_parameters={'full_attention': YARN, 'sliding_attention': {**YARN, 'factor': 2.0}, 'truncate': False}),
}
# A default run takes some of them.
SAMPLE = ('llama-3', 'gemma3', 'llama-linear', 'llama-dynamic', 'mistral-window', 'gemma2-uncapped')
# Also in the spelling of transformers 4, which cannot say all of the others.
OLD = ('llama-linear', 'gemma2-uncapped', 'gemma3')


def chosen(configs):
    return {name: config for name, config in configs.items() if NIGHTLY or name in SAMPLE}


def made(config):
    """A model whose norms and biases are nobody's default."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation='eager').float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def old_spelling(config):
    """As transformers 4 wrote the fields."""
    config = json.loads(json.dumps(config))
    rotary = config.pop('rope_parameters')
    if 'full_attention' in rotary:
        config['rope_local_base_freq'] = rotary['sliding_attention']['rope_theta']
        rotary = rotary['full_attention']
    config['rope_theta'] = rotary.pop('rope_theta')
    config['rope_scaling'] = rotary
    return config


def without_scaling(config):
    config = json.loads(json.dumps(config))
    rotary = config['rope_parameters']
    rotary.pop('truncate', None)
    for one in rotary.values() if 'full_attention' in rotary else [rotary]:
        base = one['rope_theta']
        one.clear()
        one.update({'rope_type': 'default', 'rope_theta': base})
    # Dynamic scaling makes the context longer.
    return {**config, 'max_position_embeddings': max(SEQ, config['max_position_embeddings'])}


class ForeignLosses(harness.ElixirTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def data(self, vocabulary):
        """One sequence, the padding token among it, and the token after it."""
        generator = numpy.random.default_rng(1)
        tokens = generator.integers(0, vocabulary, SEQ + 1).astype(numpy.uint32)
        tokens[10], tokens[20] = 0, 5
        tokens.tofile(self.path('data.bin'))
        return torch.from_numpy(tokens.astype(numpy.int64))[None]

    def ours(self, folder, *flags, steps=STEPS):
        log = self.path('steps.jsonl')
        if os.path.exists(log):
            os.remove(log)
        self.succeed(program('elixir-train'), '--init', folder, '--data', self.path('data.bin'), '--tokens-dtype',
                     'uint32', '--steps', str(steps), '--batch', '1', '--seq', str(SEQ), '--threads', '1', '--device', DEVICE, '--lr',
                     str(RATE), '--lr-schedule', 'constant', '--warmup-steps', '0', '--weight-decay', '0', '--dtype',
                     'fp32', '--jsonl', log, *flags)
        return [json.loads(line)['loss'] for line in text_of(log).splitlines()]

    def theirs(self, model, tokens):
        model, tokens = model.to(DEVICE), tokens.to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            logits = model(tokens[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def write_config(self, folder, config):
        with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as file:
            json.dump(config, file)

    def look_at(self, name, config):
        folder, export = self.path(name), self.path(f'{name}-trained')
        model = made(config)
        model.save_pretrained(folder)
        written = json.loads(text_of(os.path.join(folder, 'config.json')))
        tokens = self.data(config.vocab_size)
        ours, theirs = self.ours(folder, '--export', export), self.theirs(model, tokens)
        self.assertEqual(len(ours), STEPS)
        for our, their in zip(ours, theirs):
            self.assertLess(abs(our - their), CLOSE, f'{ours}, theirs {theirs}')
        self.assertGreater(theirs[0] - theirs[-1], 0.1, 'nothing was learnt')
        self.look_at_logits(export, tokens)
        if name in OLD:
            self.write_config(folder, old_spelling(written))
            self.assertEqual(self.ours(folder, steps=1), ours[:1], 'in the old spelling')
        # The control: positions count.
        self.write_config(folder, without_scaling(written))
        (first,) = self.ours(folder, steps=1)
        self.assertGreater(abs(first - theirs[0]), 10 * CLOSE, 'scaling changes nothing')

    def look_at_logits(self, folder, tokens):
        opened, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                            attn_implementation='eager')
        self.assertFalse(any(told.values()), told)
        few = tokens[:, :24].contiguous()
        few.numpy().tofile(self.path('tokens'))
        self.succeed(foreign_test.STEPS_PROGRAM, folder, self.path('tokens'), '1', '0', self.path('logits'))
        ours = torch.from_numpy(numpy.fromfile(self.path('logits'), dtype=numpy.float32))
        with torch.no_grad():
            theirs = opened.eval()(few).logits.flatten()
        self.assertLess((ours - theirs).abs().max().item(), 1e-4 * theirs.abs().max().item())

    def look_at_all(self, configs):
        daemon = self.start_elixird()
        for name, config in configs.items():
            with self.subTest(model=name):
                self.look_at(name, config)
        self.stop_elixird(daemon)

    def test_the_first_losses_with_the_real_vocabularies(self):
        self.look_at_all(chosen(REAL))

    def test_the_first_losses_with_each_field_of_these_families(self):
        self.look_at_all(chosen(SMALL))


if __name__ == '__main__':
    harness.main()
