"""Thirty questions that users ask the planner, each with the right answer. Bytes are checked by arithmetic: 14 bytes a
trained parameter with Elixir, and 95 % of a host's memory. Times are checked by what binds and by order."""

import json
import os
import shutil

import harness
from harness import program

GIB = 1 << 30
EXAMPLES = os.path.join(harness.REPOSITORY, 'examples')
LLAMA_3_8B = os.path.join(EXAMPLES, 'configs', 'llama-3-8b.json')
QWEN_32B = os.path.join(EXAMPLES, 'configs', 'qwen-2.5-32b.json')
LLAMA = {'model_type': 'llama', 'vocab_size': 128256, 'num_attention_heads': 32, 'num_key_value_heads': 8,
         'max_position_embeddings': 131072, 'rope_theta': 5e5, 'tie_word_embeddings': False}
CONFIGS = {
    '3.1-8b': {**LLAMA, 'hidden_size': 4096, 'intermediate_size': 14336, 'num_hidden_layers': 32},
    '3.2-1b': {**LLAMA, 'hidden_size': 2048, 'intermediate_size': 8192, 'num_hidden_layers': 16, 'tie_word_embeddings': True},
    '3.2-3b': {**LLAMA, 'hidden_size': 3072, 'intermediate_size': 8192, 'num_hidden_layers': 28, 'num_attention_heads': 24,
               'head_dim': 128, 'tie_word_embeddings': True},
    '3.1-405b': {**LLAMA, 'hidden_size': 16384, 'intermediate_size': 53248, 'num_hidden_layers': 126,
                 'num_attention_heads': 128},
    'mixtral': {'model_type': 'mixtral', 'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 14336,
                'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 8,
                'max_position_embeddings': 32768, 'num_local_experts': 8, 'num_experts_per_tok': 2}}
PARAMETERS = 8.03e9  # of Llama 3 8B


def machine(name):
    return ['--machine', os.path.join(EXAMPLES, 'machines', f'{name}.json')]


# The commonest desktop: Llama 3 8B on an RTX 4090, one sequence of 2048 tokens.
DESKTOP = ['--config', LLAMA_3_8B, '--seq', '2048', *machine('rtx4090')]
ONE = ['--batch', '1']


class Questions(harness.ElixirTest):
    def config(self, name):
        path = os.path.join(self.folder, f'{name}.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(CONFIGS[name], file)
        return ['--config', path]

    def plan(self, *flags):
        return json.loads(self.succeed(program('elixirctl'), 'plan', '--json', *flags).output)

    def text(self, *flags, command='plan'):
        return ' '.join(self.succeed(program('elixirctl'), command, *flags).output.split())

    def refused(self, code, *flags, parts, command='plan'):
        finished = self.run_program(program('elixirctl'), command, *flags)
        self.assertEqual(finished.exit_code, code, str(finished))
        for part in parts:
            self.assertIn(part, finished.errors)
        return finished.errors

    def about(self, value, expected, within=0.02):
        self.assertLess(abs(value / expected - 1), within, f'{value}, about {expected}')

    # ---- does it fit? ----

    def test_01_it_lacks_31_gib_and_these_changes_would_do(self):
        self.refused(3, *DESKTOP, *ONE, '--host-memory', '64GiB',
                     parts=('92.64 GiB in host memory', '31.84 GiB too few', 'It fits with 98 GiB of host memory',
                            'GPUs of 58 GiB', '3 GPUs'))
        self.plan(*DESKTOP, *ONE, '--host-memory', '98GiB')
        self.refused(3, *DESKTOP, *ONE, '--host-memory', '97GiB', parts=('cannot fit',))

    def test_02_with_128_gib_the_update_binds(self):
        plan = self.plan(*DESKTOP, *ONE, '--host-memory', '128GiB')
        self.assertEqual(plan['predicted']['binding'], 'update')
        gains = plan['predicted']['gains_s']
        self.assertLess(gains['compute'], 0.15 * plan['predicted']['step_s'])  # a faster GPU brings little
        states = plan['bytes']['host']['total'] - plan['bytes']['host']['spare'] + plan['bytes']['gpu']['states']
        self.about(states, 14 * PARAMETERS, within=0.08)  # with chunks' padding

    def test_03_estimate_agrees(self):
        self.assertIn('host 31.84 GiB short', self.text('--config', LLAMA_3_8B, *ONE, '--gpu-memory', '24GiB',
                                                         '--host-memory', '64GiB', command='estimate'))

    def test_04_the_most_layers(self):
        plan = self.plan(*DESKTOP, *ONE, '--host-memory', '64GiB', '--largest', 'layers')
        self.assertEqual(plan['largest'], {'what': 'layers', 'value': 22, 'on_device': 22})

    def test_05_two_gpus_of_48_gib_and_what_is_assumed(self):
        text = self.text('--config', QWEN_32B, *ONE, '--gpus', '2', '--gpu-memory', '48GiB', '--host-memory', '512GiB',
                         *machine('rtx4090'))
        for part in ('exchange collective', 'rates scaled from 1 GPU', 'collectives are is not known (--g2g-gb-s)'):
            self.assertIn(part, text)

    def test_06_on_half_of_that_host_it_lacks_114_gib(self):
        """With inputs of regions there, too, which leaves room for states on the GPUs."""
        self.refused(3, '--config', QWEN_32B, *ONE, '--gpus', '2', '--gpu-memory', '48GiB', '--host-memory', '256GiB',
                     *machine('rtx4090'), parts=('114.30 GiB too few', 'activations 1.48 GiB', 'It fits with'))

    def test_07_adapters_on_70b(self):
        plan = self.plan('--model', 'llama2-70b', *ONE, *machine('h100'), '--host-memory', '256GiB', '--adapters', '16')
        # Rank 16 on queries (8192 to 8192) and values (8192 to 1024) of 80 layers.
        self.assertEqual(plan['params'] - plan['frozen_params'], 80 * 16 * (8192 + 8192 + 8192 + 1024))
        self.about(plan['bytes']['host']['params'], 2 * plan['params'], within=0.05)
        self.refused(2, '--model', 'llama2-70b', *ONE, *machine('h100'), '--freeze', '.',
                     parts=('nothing is left to train', '--adapters RANK'))

    def test_08_70b_with_queries_and_values_trained(self):
        plan = self.plan('--model', 'llama2-70b', *ONE, *machine('h100'), '--host-memory', '256GiB', '--freeze',
                         '(k_proj|o_proj|mlp|norm|embed|lm_head)')
        self.assertEqual(plan['params'] - plan['frozen_params'], 80 * 8192 * (8192 + 1024))
        self.assertIn(plan['predicted']['binding'], ('h2d', 'compute'))
        if plan['spare_slots']:  # never for less than 3 %
            without = self.plan('--model', 'llama2-70b', *ONE, *machine('h100'), '--host-memory', '256GiB', '--freeze',
                                '(k_proj|o_proj|mlp|norm|embed|lm_head)', '--update', 'deferred')
            self.assertLessEqual(plan['predicted']['step_s'], 0.97 * without['predicted']['step_s'])

    def test_09_longer_than_its_context(self):
        self.refused(2, '--config', LLAMA_3_8B, *ONE, '--seq', '32768', *machine('h100'), parts=('context of 8192',))

    def test_10_a_long_sequence_on_80_gib(self):
        flags = [*self.config('3.1-8b'), *ONE, '--seq', '32768', *machine('h100')]
        plan = self.plan(*flags, '--activations', 'recompute')
        self.about(plan['bytes']['gpu']['activations'], 15.1 * GIB)  # inputs of 32 layers are 8 GiB of them
        self.assertEqual(plan['predicted']['binding'], 'compute')
        keeping = self.plan(*flags)  # what compute binds, memory shortens
        self.assertLess(keeping['predicted']['step_s'], 0.95 * plan['predicted']['step_s'])
        self.assertGreater(keeping['regions']['keep_products'] + keeping['regions']['host_products'], 0)

    def test_11_the_longest_sequence(self):
        flags = [*machine('rtx4090'), '--host-memory', '128GiB', '--largest', 'seq']
        plan = self.plan(*self.config('3.1-8b'), *flags)
        self.assertGreater(plan['largest']['value'], 30000)
        self.assertEqual(plan['tokens'], plan['largest']['value'])  # one sequence: that many tokens a step
        self.assertIn('largest seq 8192, with 1 sequence in a batch', self.text('--config', LLAMA_3_8B, *flags))

    def test_12_the_largest_batch(self):
        plan = self.plan(*DESKTOP, '--host-memory', '128GiB', '--largest', 'batch')
        self.assertGreater(plan['largest']['value'], 10)
        self.assertEqual(plan['tokens'], 2048 * plan['largest']['value'])

    def test_13_a_laptop(self):
        laptop = [*machine('laptop_rtx4060'), '--host-memory', '32GiB', *ONE, '--seq', '1024']
        self.plan(*self.config('3.2-1b'), *laptop)
        self.refused(3, *self.config('3.2-3b'), *laptop, parts=('6.35 GiB too few', 'It fits with'))

    def test_14_numa_nodes(self):
        flags = ['--config', LLAMA_3_8B, *ONE, *machine('h100')]
        one, four = self.plan(*flags), self.plan(*flags, '--numa-nodes', '4')
        self.assertEqual(one['predicted']['binding'], 'update')
        self.assertNotEqual(four['predicted']['binding'], 'update')
        self.assertLess(four['predicted']['step_s'], one['predicted']['step_s'])

    def test_15_a_mixture_on_one_gpu(self):
        plan = self.plan(*self.config('mixtral'), *ONE, '--seq', '2048', *machine('h100'))
        self.assertEqual(plan['predicted']['binding'], 'update')
        self.assertEqual(plan['params'], 46702792704)

    def test_16_a_mixture_on_eight_gpus_needs_nvlink(self):
        flags = [*self.config('mixtral'), *ONE, '--seq', '2048']
        nvlink, pcie = self.plan(*flags, *machine('nvlink_8x_h100')), self.plan(*flags, *machine('h100'), '--gpus', '8')
        self.assertEqual(pcie['predicted']['binding'], 'g2g')
        self.assertTrue(pcie['predicted']['assumed_g2g'])
        self.assertLess(2 * nvlink['predicted']['step_s'], pcie['predicted']['step_s'])

    def test_17_eight_gpus_with_nvlink_and_without(self):
        flags = ['--config', LLAMA_3_8B, *ONE, '--seq', '2048']
        nvlink, pcie = self.plan(*flags, *machine('nvlink_8x_h100')), self.plan(*flags, *machine('h100'), '--gpus', '8')
        self.assertEqual((nvlink['predicted']['binding'], pcie['predicted']['binding']), ('compute', 'g2g'))
        self.assertLess(nvlink['predicted']['step_s'], pcie['predicted']['step_s'])

    # ---- how long, how much? ----

    def test_18_days_hours_and_price(self):
        flags = [*DESKTOP, *ONE, '--host-memory', '128GiB', '--tokens', '1e9', '--price-per-hour', '2.5']
        plan = self.plan(*flags)
        days = 1e9 / plan['predicted']['tokens_s'] / 86400
        self.about(plan['run']['days'], days, within=1e-6)
        self.about(plan['run']['cost'], days * 24 * 2.5, within=1e-6)
        self.assertIn('GPU hours', self.text(*flags))

    def test_19_tokens_in_billions(self):
        flags = [*DESKTOP, *ONE, '--host-memory', '128GiB', '--tokens']
        self.assertEqual(self.plan(*flags, '300B')['run'], self.plan(*flags, '300e9')['run'])
        self.refused(2, *flags, '300X', parts=('300e9 or 300B',))

    def test_20_a_slow_link(self):
        """PCIe 3 x8: a step cannot be shorter than the way of its chunks."""
        plan = self.plan(*DESKTOP, *ONE, '--host-memory', '128GiB', '--link-gb-s', '6.6')
        self.assertIn(plan['predicted']['binding'], ('h2d', 'd2h'))
        self.assertGreaterEqual(1.001 * plan['predicted']['step_s'], plan['bytes']['step']['h2d'] / 6.6e9)

    # ---- what should I choose? ----

    def test_21_more_memory_or_a_second_gpu(self):
        rows = {row['change']: row for row in self.plan(*DESKTOP, *ONE, '--host-memory', '128GiB', '--what-if')['rows']}
        as_it_is = rows['as it is']['tokens_s']
        for change in ('twice the host memory', 'twice the memory on each GPU', 'links twice as fast', 'twice as many GPUs'):
            self.assertGreater(rows[change]['tokens_s'], as_it_is, change)
        more = self.plan(*DESKTOP, *ONE, '--host-memory', '256GiB')
        self.about(rows['twice the host memory']['step_s'], more['predicted']['step_s'], within=1e-6)

    def test_22_which_strategy(self):
        text = self.text(*DESKTOP, *ONE, '--host-memory', '128GiB', '--compare')
        for name in ('elixir', 'ddp', 'zero3', 'zero2-offload'):
            self.assertIn(name, text.replace('_', '-'))
        self.assertIn('98.78 GiB short', text)

    def test_23_a_small_model_fits_every_way(self):
        rows = self.plan(*self.config('3.2-1b'), *ONE, '--seq', '2048', *machine('rtx4090'), '--compare')['rows']
        by_name = {row['strategy']: row for row in rows}
        ours = min(row['step_s'] for name, row in by_name.items() if name.startswith('elixir') and row['fits'])
        self.assertTrue(by_name['ddp']['fits'])
        self.assertLess(ours, 1.1 * by_name['ddp']['step_s'])

    def test_24_what_accumulation_costs(self):
        self.refused(3, *DESKTOP, *ONE, '--host-memory', '128GiB', '--accumulate', '8',
                     parts=('too few', 'one backward pass per step (--accumulate 1)'))

    def test_25_without_checkpointing(self):
        self.refused(3, *DESKTOP, '--batch', '8', '--host-memory', '128GiB', '--no-checkpoint-activations',
                     parts=('too much', 'activation checkpointing'))

    # ---- what is wrong? ----

    def test_26_neither_probe_nor_machine(self):
        self.refused(4, '--model', 'gpt2-4b', parts=("run 'elixirctl probe'", '--machine FILE', '--gpu NAME'))

    def test_27_what_is_misspelt(self):
        for flags, part in ((['--model', 'llama-8b'], "did you mean 'llama-7b'?"),
                            (['--model', 'gpt2-4b', '--memory', '4'], '--'),
                            (['--model', 'gpt2-4b', '--gpu-memory', '24G'], 'GiB'),
                            (['--model', 'gpt2-4b', '--batch', '0'], '--batch')):
            self.refused(2, *flags, *machine('rtx4090'), parts=(part,))

    def test_28_405b_on_eight_gpus(self):
        error = self.refused(3, *self.config('3.1-405b'), *ONE, *machine('nvlink_8x_h100'), '--host-memory', '2TiB',
                             parts=('TiB in host memory', 'too few'))
        host = float(error.split('the model states need ')[1].split(' TiB')[0])
        gpu = float(error.split('exchange) and ')[1].split(' GiB')[0])
        self.about(host * 1024 + 8 * gpu, 14 * 405.85e9 / GIB)

    def test_29_two_nodes_without_their_network(self):
        self.refused(2, '--config', LLAMA_3_8B, *ONE, *machine('nvlink_8x_h100'), '--gpus', '16', '--gpus-per-node', '8',
                     parts=('--internode-gb-s',))

    def test_30_a_program_that_is_not_built(self):
        """After the README's first step: cause and command."""
        alone = os.path.join(self.folder, 'build', 'bin')
        os.makedirs(alone)
        shutil.copy(program('elixirctl'), alone)
        open(os.path.join(self.folder, 'build', 'CMakeCache.txt'), 'w', encoding='utf-8').close()
        finished = self.run_program(os.path.join(alone, 'elixirctl'), 'plan', '--model', 'gpt2-4b', *machine('rtx4090'))
        self.assertEqual(finished.exit_code, 5, str(finished))
        self.assertIn('--target elixir-profile', finished.errors)


if __name__ == '__main__':
    harness.main()
