"""Questions a user asks elixirctl plan and estimate, and what must be answered: nothing that fits is
refused, nothing is chosen that its neighbours beat, no figure means something else. One test for
each finding that once was answered wrongly."""

import json
import os
import re
import xml.dom.minidom

import harness
from harness import cpu_s_of, least_of, program

INVALID_ARGUMENT, DOES_NOT_FIT, BAD_INPUT = 2, 3, 4
GIB = 1 << 30
MACHINES = os.path.join(harness.REPOSITORY, 'examples', 'machines')
SERVER = ['--machine', os.path.join(harness.REPOSITORY, 'examples', 'machine_a100x4.json')]
ALONE = [*SERVER, '--gpus', '1', '--host-memory', '4TiB']
TRILLION = {'model_type': 'llama', 'vocab_size': 128256, 'max_position_embeddings': 8192,
            'hidden_size': 25600, 'num_hidden_layers': 128, 'num_attention_heads': 200,
            'num_key_value_heads': 8, 'intermediate_size': 88064}
EMBEDDING = {'model_type': 'llama', 'vocab_size': 256000, 'max_position_embeddings': 8192,
             'hidden_size': 1024, 'num_hidden_layers': 1, 'num_attention_heads': 8,
             'intermediate_size': 2048}


class Answers(harness.ElixirTest):
    def ctl(self, command, *flags):
        return json.loads(self.succeed(program('elixirctl'), command, '--json', *flags).output)

    def plan(self, *flags):
        return self.ctl('plan', *flags)

    def step(self, *flags):
        return self.plan(*flags)['predicted']['step_s']

    def refused(self, code, *flags):
        finished = self.run_program(program('elixirctl'), *flags)
        self.assertEqual(finished.exit_code, code, finished)
        return finished.errors

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(value, file)
        return path


class ChunkLengths(Answers):
    def test_what_fits_with_some_length_is_not_refused(self):
        plan = self.plan('--model', 'llama-7b', '--batch', '28', '--seq', '1024', *ALONE,
                         '--gpu-memory', '24GiB')
        self.assertLess(plan['chunk_numel'] * 2, 0.5 * GIB)
        plan = self.plan('--model', 'llama2-70b', '--batch', '8', '--seq', '4096', *ALONE,
                         '--gpu-memory', '80GiB')
        self.assertGreaterEqual(plan['rcache_blocks'], 2)
        trillion = ['--config', self.write('t.json', TRILLION), '--batch', '1', '--seq', '1024',
                    *SERVER, '--gpus', '1024', '--gpu-memory', '80GiB', '--host-memory', '128TiB',
                    '--update', 'deferred']
        plans = []
        self.assertLess(least_of(lambda: cpu_s_of(lambda: plans.append(self.plan(*trillion))), 5), 5)
        plan = plans[-1]
        self.assertEqual(plan['placement']['cpu'], 0)
        self.assertGreaterEqual(plan['rcache_blocks'], 2)

    def test_other_lengths_are_not_faster(self):
        model = ['--model', 'llama2-70b', '--batch', '1', '--seq', '1024', '--gpu-memory', '24GiB']
        before = float('inf')
        for gpus, most_s in ((16, 16.4), (32, 13.5), (64, 11.3)):
            machine = [*SERVER, '--gpus', str(gpus), '--host-memory', '8TiB']
            plan = self.plan(*model, *machine)
            step_s = plan['predicted']['step_s']
            self.assertEqual(plan['exchange'], 'collective')
            self.assertLess(step_s, most_s)
            self.assertLess(step_s, before, 'more GPUs are not slower')
            self.assertLessEqual(step_s, 1.005 * self.step(*model, *machine, '--chunk-numel',
                                                           '327680000'))
            before = step_s
        self.assertLessEqual(self.step(*model, *ALONE),
                             1.005 * self.step(*model, *ALONE, '--chunk-numel', '327680000'))

    def test_more_memory_is_not_slower(self):
        for model, sizes in (('llama-7b', (16, 20, 24, 28)), ('llama-13b', (24, 32, 40))):
            steps = [self.step('--model', model, '--batch', '4', '--seq', '1024', *ALONE,
                               '--gpu-memory', f'{gib}GiB') for gib in sizes]
            for less, more in zip(steps, steps[1:]):
                self.assertLess(more, 1.005 * less, steps)


class Estimates(Answers):
    def check_largest(self, *flags):
        """What estimate says can be planned; a tenth more cannot."""
        largest = self.ctl('estimate', *flags)['elixir']['largest_batch']
        self.assertGreater(largest, 0)
        gpus = [] if '--gpus' in flags else ['--gpus', '1']
        self.plan(*flags, *SERVER, *gpus, '--batch', str(largest))
        self.refused(DOES_NOT_FIT, 'plan', *flags, *SERVER, *gpus, '--batch',
                     str(largest + max(1, largest // 10)))
        return largest

    def test_the_largest_batch_can_be_planned_and_more_cannot(self):
        for flags in (['--model', 'gpt2-small', '--seq', '128', '--gpu-memory', '24GiB'],
                      ['--model', 'opt-6.7b', '--seq', '1024', '--gpu-memory', '40GiB'],
                      ['--model', 'gpt2-xl', '--seq', '256', '--gpu-memory', '40GiB'],
                      ['--model', 'llama-7b', '--seq', '64', '--gpu-memory', '24GiB', '--gpus', '4'],
                      ['--model', 'llama-13b', '--seq', '1024', '--gpu-memory', '40GiB', '--gpus',
                       '4']):
            with self.subTest(flags=flags):
                self.assertLess(self.check_largest(*flags, '--host-memory', '2TiB'), 10000)

    def test_the_least_of_a_model_can_be_planned_and_less_cannot(self):
        """Without a GPU's memory Elixir's row is what the smallest one needs."""
        for model in ('gpt2-medium', 'opt-1.3b', 'llama-7b'):
            flags = ['--model', model, '--seq', '64']
            least = self.ctl('estimate', *flags)['elixir']['gpu_bytes']
            batch = [*flags, '--batch', '1', *ALONE]
            bytes_of_gpu = self.plan(*batch)['bytes']['gpu']
            beside = 1.25 * bytes_of_gpu['activations'] + bytes_of_gpu['buffers'] + (768 << 20)
            with self.subTest(model=model):
                plan = self.plan(*batch, '--gpu-memory', str(int(beside + least / 0.95)))
                self.assertGreaterEqual(sum(plan['bytes']['gpu'][kind] for kind in
                                            ('rcache', 'grad_blocks')), least)
                self.refused(DOES_NOT_FIT, 'plan', *batch, '--gpu-memory',
                             str(int(0.99 * least + bytes_of_gpu['activations'] + (768 << 20))))

    def test_activations_of_a_batch_are_the_profile_s(self):
        flags = ['--model', 'opt-6.7b', '--batch', '58', '--seq', '1024']
        estimate = self.ctl('estimate', *flags)
        self.assertEqual(estimate['activation_bytes'],
                         self.ctl('profile', *flags)['activation_bytes'])

    def test_where_plan_succeeds_estimate_says_yes(self):
        flags = ['--model', 'llama-7b', '--gpus', '8', '--gpu-memory', '80GiB', '--host-memory',
                 '64GiB', '--batch', '1']
        self.plan(*flags, *SERVER)
        row = self.ctl('estimate', *flags)['elixir']
        self.assertTrue(row['fits'])
        self.assertGreater(row['by_kind']['gpu_states'], 0)
        self.assertLessEqual(row['host_bytes_per_node'], 0.95 * 64 * GIB)
        text = self.succeed(program('elixirctl'), 'estimate', *flags).output
        self.assertIn('of it states', text)

    def test_without_a_batch_that_fits_the_answer_is_no(self):
        flags = ['--model', 'gpt2-xl', '--gpu-memory', '1GiB', '--host-memory', '100GiB']
        for name, row in self.ctl('estimate', *flags).items():
            if isinstance(row, dict):
                self.assertEqual((row['largest_batch'], row['fits']), (0, False), name)
        self.assertIn('no: ', self.succeed(program('elixirctl'), 'estimate', *flags).output)


class Rates(Answers):
    def test_rates_are_those_of_the_gpus_asked_for(self):
        # As the paper measured one GPU: 22 and 16 GB/s, 5 and 50 Gparam/s.
        one = dict(gpus=1, gpu_memory_bytes=40 * GIB, host_memory_bytes=500 * GIB, d2h_gb_s=16,
                   h2d_gb_s=22, joint_gb_s=0, gpu_update_gparam_s=50, cpu_update_gparam_s=5,
                   dram_gb_s=200, gpu_tflops=185, gpu_half_tokens=2048)
        for model in ('gpt2-10b', 'gpt2-20b'):
            flags = ['--model', model, '--batch', '4']
            self.assertAlmostEqual(self.step(*flags, *SERVER, '--gpus', '1'),
                                   self.step(*flags, '--machine', self.write('one.json', one)))
        text = self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-4b', *SERVER, '--gpus',
                            '8').output
        self.assertIn('rates scaled from 4 GPUs', text)

    def test_collectives_are_chunk_bytes_a_second_whatever_the_ranks(self):
        for gpus in ('4', '16'):
            plan = self.plan('--model', 'gpt2-4b', '--batch', '8', *SERVER, '--exchange',
                             'collective', '--host-memory', '4TiB', '--gpus', gpus)
            self.assertAlmostEqual(plan['predicted']['g2g_s'],
                                   plan['bytes']['step']['g2g'] / 200e9, delta=1e-3)

    def test_the_probe_measures_collectives(self):
        machine = os.path.join(self.folder, 'machine.json')
        probe = [program('elixirctl'), 'probe', '--json', '--device', 'cpu', '--gpus', '2']
        environment = {'ELIXIR_MACHINE_FILE': machine}
        probed = json.loads(self.succeed(*probe, environment=environment).output)
        self.assertGreater(probed['g2g_gb_s'], 0.01)
        self.assertNotIn('collectives were not measured', ' '.join(probed['notes']))
        self.assertEqual(probed['version'], 2)
        # Ranks that cannot connect: estimated, and said so.
        environment['GLOO_SOCKET_IFNAME'] = 'no-such-interface'
        probed = json.loads(self.succeed(*probe, environment=environment).output)
        self.assertIn('collectives were not measured', ' '.join(probed['notes']))
        self.assertAlmostEqual(probed['g2g_gb_s'], probed['joint_gb_s'] / 2)

    def test_several_nodes(self):
        flags = ['--model', 'llama2-70b', '--batch', '1', *SERVER, '--gpus', '16', '--gpu-memory',
                 '24GiB', '--host-memory', '4TiB', '--gpus-per-node', '8']
        self.assertIn('--internode-gb-s', self.refused(INVALID_ARGUMENT, 'plan', *flags))
        nodes = self.plan(*flags, '--internode-gb-s', '20')
        self.assertEqual((nodes['nodes'], nodes['exchange']), (2, 'collective'))
        self.assertIn('--exchange', self.refused(INVALID_ARGUMENT, 'plan', *flags,
                                                 '--internode-gb-s', '20', '--exchange', 'host'))
        # Half the states lie in each node.
        one = self.plan(*flags[:-2], '--exchange', 'collective', '--chunk-numel',
                        str(nodes['chunk_numel']), '--gpu-state-share', '0', '--update', 'deferred')
        two = self.plan(*flags, '--internode-gb-s', '20', '--chunk-numel',
                        str(nodes['chunk_numel']), '--gpu-state-share', '0', '--update', 'deferred')
        self.assertEqual(2 * two['bytes']['host']['total'], one['bytes']['host']['total'])
        self.assertGreater(self.step(*flags, '--internode-gb-s', '5'),
                           nodes['predicted']['step_s'])
        self.refused(INVALID_ARGUMENT, 'plan', *flags[:-1], '7', '--internode-gb-s', '20')
        for command in ('plan', 'estimate'):
            self.refused(INVALID_ARGUMENT, command, '--model', 'gpt2-4b', '--gpus', '4097')

    def test_fp32_has_a_rate_of_its_own(self):
        flags = ['--model', 'gpt2-4b', '--batch', '8', '--host-memory', '4TiB', '--dtype', 'fp32']
        plan = self.plan(*flags, *SERVER)
        half = self.plan(*flags[:-1], 'bf16', *SERVER)
        self.assertFalse(plan['predicted']['assumed_fp32'])
        self.assertAlmostEqual(plan['predicted']['compute_s'] / half['predicted']['compute_s'],
                               185 / 17.6, delta=0.5)
        with open(SERVER[1], encoding='utf-8') as file:
            machine = json.load(file)
        del machine['gpu_fp32_tflops']  # then it is said that the figure is another's
        without = ['--machine', self.write('without.json', machine)]
        self.assertTrue(self.plan(*flags, *without)['predicted']['assumed_fp32'])
        self.assertIn('gpu_fp32_tflops', self.succeed(program('elixirctl'), 'plan', *flags,
                                                      *without).output)


class Predictions(Answers):
    def test_tflops_are_below_the_peak(self):
        plan = self.plan('--config', self.write('e.json', EMBEDDING), '--batch', '8', '--seq',
                         '1024', *ALONE)
        self.assertLess(plan['predicted']['tflops'], 185)
        self.assertLess(plan['predicted']['mfu'], 1)

    def test_what_binds_is_what_gains(self):
        flags = ['--model', 'opt-175b', '--batch', '1', *SERVER, '--host-memory', '5TiB',
                 '--gpu-memory', '80GiB']
        deferred = [*flags, '--update', 'deferred']
        predicted = self.plan(*deferred)['predicted']
        self.assertEqual(predicted['binding'], 'update')
        self.assertEqual(max(predicted['gains_s'], key=predicted['gains_s'].get), 'update')
        self.assertLess(predicted['immediate_step_s'], 0.9 * predicted['step_s'])
        text = self.succeed(program('elixirctl'), 'plan', *deferred).output
        self.assertIn('with --update immediate', text)
        # Early updates gain it as well, and need no promise that nothing is clipped.
        early = self.plan(*flags)
        self.assertEqual(early['update'], 'early')
        self.assertGreater(early['spare_slots'], 0)
        self.assertLess(early['predicted']['step_s'], 0.95 * predicted['step_s'])
        immediate = self.plan(*flags, '--update', 'immediate')['predicted']
        self.assertLessEqual(immediate['step_s'], 1.005 * predicted['immediate_step_s'])
        self.assertIsNone(immediate['immediate_step_s'])

    def test_a_refusal_speaks_of_the_nearest(self):
        errors = self.refused(DOES_NOT_FIT, 'plan', '--model', 'llama2-70b', '--seq', '256',
                              '--batch', '16', *SERVER, '--gpus', '4', '--gpu-memory', '8GiB',
                              '--host-memory', '4TiB')
        short, = re.findall(r'([\d.]+) (MiB|GiB) (?:too few|more than)', errors)
        self.assertLess(float(short[0]) * (1 if short[1] == 'GiB' else 1 / 1024), 3, errors)
        # Where the host binds: beside as many states as the GPUs hold.
        errors = self.refused(DOES_NOT_FIT, 'plan', '--model', 'llama-7b', '--batch', '1', *SERVER,
                              '--gpus', '2', '--gpu-memory', '16GiB', '--host-memory', '32GiB')
        self.assertRegex(errors, r'host memory .* beside [1-9][\d.]* GiB on each GPU')

    def test_llama_keeps_what_a_fused_norm_keeps(self):
        # 1.5 GiB fewer than with norms of single operators: 2 x 32 x 6 B x 4096 x 1024.
        profile = self.ctl('profile', '--model', 'llama-7b', '--batch', '1', '--seq', '1024',
                           '--no-checkpoint-activations')
        self.assertAlmostEqual(profile['activation_bytes'] / GIB, 5.1, delta=0.15)


class Smaller(Answers):
    def test_sums_of_several_passes_count(self):
        flags = ['--model', 'llama-7b', '--batch', '4', *ALONE, '--gpu-memory', '40GiB']
        one, two = self.plan(*flags), self.plan(*flags, '--accumulate', '2')
        self.assertEqual(two['accumulate'], 2)
        self.assertLessEqual(two['bytes']['gpu']['total'], 40 * GIB)
        # As many states on the GPU take more with sums.
        share = ['--gpu-state-share', '0.2', '--chunk-numel', str(one['chunk_numel'])]
        one, two = self.plan(*flags, *share), self.plan(*flags, *share, '--accumulate', '2')
        self.assertAlmostEqual(two['bytes']['gpu']['states'] / one['bytes']['gpu']['states'], 18 / 14,
                               places=6)

    def test_shards_are_padded_as_in_memory(self):
        flags = ['--model', 'gpt2-nano', '--batch', '1', *SERVER, '--gpus', '1024', '--gpu-memory',
                 '40GiB', '--chunk-numel', '296832', '--exchange', 'collective']
        plan = self.plan(*flags, '--gpu-state-share', '0')
        # 290 elements a rank, rounded up to 320.
        self.assertEqual(plan['bytes']['gpu']['rcache'],
                         plan['rcache_blocks'] * 1024 * 320 * 2)

    def test_a_profile_is_of_one_step(self):
        profile = os.path.join(self.folder, 'profile.json')
        self.succeed(program('elixirctl'), 'profile', '--model', 'gpt2-nano', '--output', profile)
        self.plan('--profile', profile, *SERVER)
        for flags in (['--freeze', 'wte'], ['--layers', '3'], ['--no-checkpoint-activations'],
                      ['--batch', '4'], ['--largest', 'batch']):
            self.refused(INVALID_ARGUMENT, 'plan', '--profile', profile, *SERVER, *flags)
        odd = dict(EMBEDDING, head_dim=63)
        self.assertIn('head_dim', self.refused(BAD_INPUT, 'plan', '--config',
                                               self.write('odd.json', odd), *SERVER))

    def test_defaults_are_what_the_model_can_do(self):
        self.assertEqual(self.plan('--model', 'gpt2-nano', *SERVER)['tokens'], 8 * 128)
        inner = {'model_type': 'gpt2', 'vocab_size': 50257, 'n_positions': 1024, 'n_embd': 768,
                 'n_layer': 12, 'n_head': 12, 'n_inner': 2048}
        width, mlp = 768, 2048
        block = 4 * width * width + 2 * width * mlp + 9 * width + mlp
        plan = self.plan('--config', self.write('i.json', inner), *SERVER)
        self.assertEqual(plan['params'], (50257 + 1024) * width + 12 * block + 2 * width)

    def test_what_is_frozen_has_no_states(self):
        flags = ['--model', 'llama-7b', '--batch', '1', *ALONE]
        whole = self.plan(*flags)
        some = self.plan(*flags, '--freeze', r'layers\.([0-9]|[12][0-9])\.')
        self.assertLess(some['bytes']['host']['states'], 0.2 * whole['bytes']['host']['states'])
        self.assertLess(some['predicted']['compute_s'], whole['predicted']['compute_s'])
        self.assertEqual((some['params'], whole['frozen_params']), (whole['params'], 0))
        layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
        self.assertEqual(some['frozen_params'], 30 * layer)
        text = self.succeed(program('elixirctl'), 'plan', *flags, '--freeze', 'layers').output
        self.assertIn('6.74 B parameters, 6.48 B of them frozen', text)
        # With a block for every chunk nothing of it is fetched again, but for the token embedding and
        # the output projection, which share a long block.
        rest = self.plan(*flags[:-1], '4TiB', '--gpu-memory', '60GiB', '--freeze',
                         r'layers\.([0-9]|[12][0-9])\.', '--gpu-state-share', '0')
        run = rest['long_numel'] // rest['chunk_numel']
        self.assertEqual(rest['rcache_blocks'] + 2 * run, rest['n_chunks'])
        self.assertLess(rest['bytes']['step']['h2d'], 4 * GIB)
        self.assertIn('nothing is frozen', self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze',
                                                        'no_such'))
        self.assertIn('nothing is left', self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze',
                                                      '.'))
        self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze', '[')
        self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze', '')
        # Of a kind that takes some matchers for ever.
        self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze', '(.*)*(.*)*(.*)*x$')


    def test_what_is_lacking_counts_activations(self):
        """Where these alone are too large, by every row and by both commands."""
        model = ['--model', 'gpt2-4b', '--batch', '140']
        rows = {row['strategy']: row for row in self.plan(*model, *SERVER, '--compare')['rows']}
        message = self.refused(DOES_NOT_FIT, 'plan', *model, *SERVER)
        activations = float(re.search(r'([\d.]+) GiB more than there are', message).group(1))
        lacks = {name: float(re.fullmatch(r'GPU ([\d.]+) GiB', row['lacks']).group(1))
                 for name, row in rows.items()}
        self.assertGreater(min(lacks.values()), activations)
        self.assertGreater(rows['elixir']['gpu_bytes'], 40 * GIB)
        self.assertGreater(rows['elixir']['host_bytes'], 40 * GIB)
        text = self.succeed(program('elixirctl'), 'estimate', *model, '--gpus', '4', '--gpu-memory',
                            '40GiB', '--host-memory', '500GiB').output
        for name in ('zero3_offload', 'zero2', 'ddp'):
            self.assertAlmostEqual(float(re.search(name + r' .*no: GPU ([\d.]+) GiB', text).group(1)),
                                   lacks[name], delta=0.1)

    def test_collectives_that_are_not_known_are_said_to_be_assumed(self):
        flags = ['--model', 'gpt2-4b', '--machine', os.path.join(MACHINES, 'h100.json'), '--gpus']
        assumed = self.plan(*flags, '4')
        self.assertTrue(assumed['predicted']['assumed_g2g'])
        text = self.succeed(program('elixirctl'), 'plan', *flags, '4').output
        self.assertIn('how fast collectives are is not known (--g2g-gb-s)', text)
        known = self.plan(*flags, '4', '--g2g-gb-s', '300')
        self.assertFalse(known['predicted']['assumed_g2g'])
        self.assertLess(known['predicted']['step_s'], assumed['predicted']['step_s'])
        self.assertFalse(self.plan(*flags, '1')['predicted']['assumed_g2g'])

    def test_a_profile_says_its_type(self):
        profile = os.path.join(self.folder, 'fp16.json')
        model = ['--model', 'gpt2-large', '--batch', '1']
        self.succeed(program('elixirctl'), 'profile', *model, '--dtype', 'fp16', '--output', profile)
        self.assertEqual(self.plan('--profile', profile, *ALONE)['bytes'],
                         self.plan(*model, '--dtype', 'fp16', *ALONE)['bytes'])
        self.assertIn('--dtype', self.refused(INVALID_ARGUMENT, 'plan', '--profile', profile, *ALONE,
                                              '--dtype', 'fp32'))

    def test_what_does_not_go_together_is_named(self):
        flags = ['--model', 'gpt2-large', '--batch', '1', *SERVER, '--exchange', 'host',
                 '--gpu-state-share', '0.5']
        self.assertIn('with it elixird keeps all states', self.refused(INVALID_ARGUMENT, 'plan', *flags))
        share = ['--model', 'gpt2-4b', '--batch', '1', *ALONE, '--gpu-state-share', '1']
        self.assertIn('another --gpu-state-share or none', self.refused(DOES_NOT_FIT, 'plan', *share))
        two = os.path.join(self.folder, 'two')
        self.assertIn(two, self.refused(INVALID_ARGUMENT, 'plan', *share[:4], *ALONE, '--trace', two,
                                        '--memory-picture', two))
        said = self.succeed(program('elixirctl'), 'plan', *share[:4], *ALONE, '--rcache-blocks', '1',
                            '--exchange', 'collective').errors
        self.assertIn('--rcache-blocks 1: the plan has 2', said)
        self.assertIn('one GPU exchanges with nobody', said)


class MoreQuestions(Answers):
    MODEL = ['--model', 'gpt2-4b', '--batch', '8']

    def test_strategies_side_by_side(self):
        rows = self.plan(*self.MODEL, *SERVER, '--compare')['rows']
        fields = ['strategy', 'exchange', 'fits', 'step_s', 'tokens_s', 'gpu_bytes', 'host_bytes',
                  'lacks']
        self.assertTrue(all(list(row) == fields for row in rows), rows)
        self.assertEqual([row['strategy'] for row in rows],
                         ['elixir', 'elixir', 'ddp', 'zero1', 'zero2', 'zero3', 'zero2_offload',
                          'zero3_offload'])
        for row in rows:
            self.assertEqual(row['fits'], row['lacks'] is None)
            self.assertEqual(row['fits'], row['step_s'] is not None)
        best = min(row['step_s'] for row in rows[:2] if row['fits'])
        self.assertAlmostEqual(best, self.step(*self.MODEL, *SERVER))
        self.assertFalse(rows[2]['fits'])  # 16 bytes a parameter
        self.assertRegex(rows[2]['lacks'], r'GPU [\d.]+ GiB')
        for row in rows[2:]:
            if row['fits']:
                self.assertGreaterEqual(1.001 * row['step_s'], best, row['strategy'])
        self.refused(INVALID_ARGUMENT, 'plan', *self.MODEL, *SERVER, '--compare', '--largest',
                     'batch')
        text = self.succeed(program('elixirctl'), 'plan', *self.MODEL, *SERVER, '--compare').output
        self.assertIn('tokens/s', text)

    def test_zero_3_keeps_what_is_frozen_on_its_gpus(self):
        """So that on one GPU it is what DDP is."""
        rows = self.plan('--model', 'gpt2-4b', '--batch', '1', '--freeze', r'h\.', '--gpus', '1',
                         *SERVER, '--compare')['rows']
        step_s = {row['strategy']: row['step_s'] for row in rows}
        self.assertEqual(step_s['zero3'], step_s['ddp'])

    def test_the_largest(self):
        for what, flag in (('batch', '--batch'), ('seq', '--seq'), ('layers', '--layers')):
            with self.subTest(what=what):
                model = ['--model', 'gpt2-large', *ALONE, '--gpu-memory', '6GiB']
                if what == 'seq':
                    model += ['--batch', '48']
                elif what == 'layers':
                    model += ['--batch', '4', '--seq', '512']
                plan = self.plan(*model, '--largest', what)
                self.assertEqual(plan['largest']['what'], what)
                value = plan['largest']['value']
                self.assertEqual(self.step(*model, flag, str(value)), plan['predicted']['step_s'])
                self.refused(DOES_NOT_FIT, 'plan', *model, flag, str(value + 1))
                self.assertIn(f'{flag} is what --largest {what} looks for', self.refused(
                    INVALID_ARGUMENT, 'plan', *model, flag, '4', '--largest', what))

    def test_days_and_cost(self):
        plan = self.plan(*self.MODEL, *SERVER, '--tokens', '300e9', '--price-per-hour', '2.5')
        run = plan['run']
        hours = 300e9 / plan['predicted']['tokens_s'] / 3600
        self.assertAlmostEqual(run['days'], hours / 24)
        self.assertAlmostEqual(run['gpu_hours'], 4 * hours)
        self.assertAlmostEqual(run['cost'], 10 * hours)
        self.assertAlmostEqual(plan['predicted']['tokens_s'],
                               4 * plan['tokens'] / plan['predicted']['step_s'])
        self.refused(INVALID_ARGUMENT, 'plan', *self.MODEL, *SERVER, '--price-per-hour', '2')

    def test_a_picture_of_time_over_memory(self):
        path = os.path.join(self.folder, 'time.svg')
        self.plan(*self.MODEL, *ALONE, '--time-picture', path)
        picture = xml.dom.minidom.parse(path)
        points = picture.getElementsByTagName('circle')
        self.assertGreater(len(points), 10)
        heights = [float(point.getAttribute('cy')) for point in points]
        for less, more in zip(heights, heights[1:]):
            self.assertGreaterEqual(more, less - 0.5, 'more memory is not slower')

    def test_the_overhead_of_cuda_is_left_free(self):
        plan = self.plan('--model', 'gpt2-small', '--batch', '1', *ALONE, '--gpu-memory', '8GiB')
        left = 8 * GIB - plan['u_allowed_bytes'] - sum(
            plan['bytes']['gpu'][kind] for kind in ('activations', 'buffers'))
        self.assertGreaterEqual(left, 768 << 20)


class Documentation(Answers):
    MODELS = (['--config', 'llama-3-8b'], ['--config', 'qwen-2.5-32b'], ['--model', 'llama2-70b'])

    def table(self, name):
        with open(os.path.join(harness.REPOSITORY, 'docs', 'planner.md'), encoding='utf-8') as file:
            return file.read().split(f'<!-- table: {name} -->', 1)[1].split('\n\n', 1)[0]

    def test_the_table_of_vocabularies_is_what_estimate_says(self):
        configs = os.path.join(harness.REPOSITORY, 'examples', 'configs')
        rows = re.findall(r'^\| ([a-z][\w.-]*-[\w.-]+) \| (.*) \|$', self.table('vocabularies'), re.M)
        self.assertEqual(len(rows), 7)
        for name, cells in rows:
            model = (['--model', name] if name.startswith('gpt2') else
                     ['--config', os.path.join(configs, name + '.json')])
            with self.subTest(model=name):
                vocabulary, of_layer, longest, whole, whole_mib, chunk, mib = cells.split(' | ')
                params = self.ctl('profile', *model, '--batch', '1')['params']
                in_layers = [one['numel'] for one in params
                             if re.search(r'\.(h|layers)\.\d', one['name'])]
                self.assertEqual(int(of_layer), max(in_layers))
                self.assertEqual(int(longest), max(one['numel'] for one in params))
                self.assertEqual(int(longest) % int(vocabulary), 0)
                before = self.ctl('estimate', *model, '--chunk-numel', whole)['elixir']
                after = self.ctl('estimate', *model)['elixir']
                self.assertGreaterEqual(int(whole), int(longest))
                self.assertEqual(before['long_blocks'], 0)
                self.assertEqual(f"{before['gpu_bytes'] / (1 << 20):.0f} MiB", whole_mib)
                self.assertEqual(after['chunk_numel'], int(chunk))
                self.assertLessEqual(int(chunk), 1.25 * int(of_layer))
                self.assertEqual(f"{after['gpu_bytes'] / (1 << 20):.0f} MiB", mib)

    def test_the_table_of_machines_is_what_plan_says(self):
        table = self.table('machines')
        examples = os.path.join(harness.REPOSITORY, 'examples')
        rows = re.findall(r'^\| `(\w+)` \| (.*) \|$', table, re.M)
        self.assertEqual(len(rows), 5)
        for machine, cells in rows:
            path = os.path.join(examples, 'machines', machine + '.json')
            for (flag, model), cell in zip(self.MODELS, cells.split(' | '), strict=True):
                if flag == '--config':
                    model = os.path.join(examples, 'configs', model + '.json')
                with self.subTest(machine=machine, model=model):
                    told = self.plan(flag, model, '--batch', '2', '--seq', '2048', '--machine',
                                     path)['predicted']
                    self.assertEqual(cell, f"{told['tokens_s']:.0f} tokens/s, "
                                           f"{told['step_s']:.2f} s, MFU {1e2 * told['mfu']:.0f} %, "
                                           f"{told['binding']}")


if __name__ == '__main__':
    harness.main()
