"""Questions a user asks elixirctl plan and estimate: their flags, what two commands must agree on, and
the tables of docs/planner.md. What a plan is like, tests/planner asks of make_plan()."""

import json
import os
import re
import sys
import xml.dom.minidom

import harness
from harness import NIGHTLY, program

sys.path.insert(0, os.path.join(harness.REPOSITORY, 'scripts'))

import machine_table  # noqa: E402  (where it is, is known only now)
import region_table  # noqa: E402

INVALID_ARGUMENT, DOES_NOT_FIT, BAD_INPUT = 2, 3, 4
GIB = 1 << 30
SERVER = ['--machine', os.path.join(harness.REPOSITORY, 'examples', 'machine_a100x4.json')]
ALONE = [*SERVER, '--gpus', '1', '--host-memory', '4TiB']


class Answers(harness.ElixirTest):
    def ctl(self, command, *flags):
        return json.loads(self.succeed(program('elixirctl'), command, '--json', *flags).output)

    def plan(self, *flags):
        return self.ctl('plan', *flags)

    def step(self, *flags):
        return self.plan(*flags)['predicted']['step_s']

    def profile(self, *flags):
        """A file of it: what takes longest is looked at once for several plans."""
        path = os.path.join(self.folder, 'profile.json')
        self.succeed(program('elixirctl'), 'profile', *flags, '--output', path)
        return path

    def refused(self, code, *flags):
        finished = self.run_program(program('elixirctl'), *flags)
        self.assertEqual(finished.exit_code, code, finished)
        return finished.errors


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
        rows = (['--model', 'gpt2-xl', '--seq', '256', '--gpu-memory', '40GiB'],
                ['--model', 'gpt2-small', '--seq', '128', '--gpu-memory', '24GiB'],
                ['--model', 'opt-6.7b', '--seq', '1024', '--gpu-memory', '40GiB'],
                ['--model', 'llama-7b', '--seq', '64', '--gpu-memory', '24GiB', '--gpus', '4'],
                ['--model', 'llama-13b', '--seq', '1024', '--gpu-memory', '40GiB', '--gpus', '4'])
        for flags in rows if NIGHTLY else rows[:1]:
            with self.subTest(flags=flags):
                self.assertLess(self.check_largest(*flags, '--host-memory', '2TiB'), 10000)


class Rates(Answers):
    def test_the_probe_measures_collectives(self):
        machine = os.path.join(self.folder, 'machine.json')
        probe = [program('elixirctl'), 'probe', '--json', '--device', 'cpu', '--gpus', '2']
        environment = {'ELIXIR_MACHINE_FILE': machine}
        probed = json.loads(self.succeed(*probe, environment=environment).output)
        self.assertGreater(probed['g2g_gb_s'], 0.01)
        self.assertNotIn('collectives were not measured', ' '.join(probed['notes']))
        self.assertEqual(probed['version'], 3)
        for rate in ('gpu_memory_gb_s', 'gpu_launch_us'):
            self.assertGreater(probed[rate], 0.01)
        self.assertEqual([row[0] for row in probed['gpu_attention_tflops']], [64, 128])
        forget = [program('elixirctl'), 'probe', '--forget']
        self.assertIn(f'removed {machine}', self.succeed(*forget, environment=environment).output)
        self.assertFalse(os.path.exists(machine))
        self.assertIn('is not there', self.succeed(*forget, environment=environment).output)
        if not NIGHTLY:
            return
        # Ranks that cannot connect: estimated, and said so.
        environment['GLOO_SOCKET_IFNAME'] = 'no-such-interface'
        probed = json.loads(self.succeed(*probe, environment=environment).output)
        self.assertIn('collectives were not measured', ' '.join(probed['notes']))
        self.assertAlmostEqual(probed['g2g_gb_s'], probed['joint_gb_s'] / 2)

    def test_several_nodes(self):
        flags = ['--profile', self.profile('--model', 'llama2-70b', '--batch', '1'), *SERVER, '--gpus', '16',
                 '--gpu-memory', '24GiB', '--host-memory', '4TiB', '--gpus-per-node', '8']
        self.assertIn('--internode-gb-s', self.refused(INVALID_ARGUMENT, 'plan', *flags))
        nodes = self.plan(*flags, '--internode-gb-s', '20')
        self.assertEqual((nodes['nodes'], nodes['exchange']), (2, 'collective'))
        self.assertIn('--exchange', self.refused(INVALID_ARGUMENT, 'plan', *flags,
                                                 '--internode-gb-s', '20', '--exchange', 'host'))
        # Half the states lie in each node.
        states = ['--chunk-numel', str(nodes['chunk_numel']), '--gpu-state-share', '0', '--swing-stride', '0',
                  '--update', 'deferred']
        one = self.plan(*flags[:-2], '--exchange', 'collective', *states)
        two = self.plan(*flags, '--internode-gb-s', '20', *states)
        self.assertEqual(2 * two['bytes']['host']['total'], one['bytes']['host']['total'])


class Plans(Answers):
    def test_llama_keeps_what_a_fused_norm_keeps(self):
        # 1.5 GiB fewer than with norms of single operators: 2 x 32 x 6 B x 4096 x 1024.
        profile = self.ctl('profile', '--model', 'llama-7b', '--batch', '1', '--seq', '1024',
                           '--no-checkpoint-activations')
        self.assertAlmostEqual(profile['activation_bytes'] / GIB, 5.1, delta=0.15)

    def test_shards_are_padded_as_in_memory(self):
        flags = ['--model', 'gpt2-nano', '--batch', '1', *SERVER, '--gpus', '1024', '--gpu-memory',
                 '40GiB', '--chunk-numel', '296832', '--exchange', 'collective']
        plan = self.plan(*flags, '--gpu-state-share', '0')
        # 290 elements a rank, rounded up to 320.
        self.assertEqual(plan['bytes']['gpu']['rcache'],
                         plan['rcache_blocks'] * 1024 * 320 * 2)

    def test_a_profile_is_of_one_step(self):
        profile = self.profile('--model', 'gpt2-nano')
        self.plan('--profile', profile, *SERVER)
        for flags in (['--freeze', 'wte'], ['--layers', '3'], ['--batch', '4'], ['--largest', 'batch'],
                      ['--activations', 'some'], ['--activations', 'keep', '--checkpoint-activations']):
            self.refused(INVALID_ARGUMENT, 'plan', '--profile', profile, *SERVER, *flags)
        # What each region could keep is in it.
        kept = self.plan('--profile', profile, *SERVER, '--no-checkpoint-activations')
        self.ctl('plan', '--profile', profile, *SERVER, '--activations', 'keep', '--compare')  # the others recompute
        self.assertEqual(kept['regions'], {'recompute': 0, 'keep_products': 0, 'keep_all': 4, 'host_products': 0,
                                           'host_boundaries': 0})
        self.assertEqual(self.plan('--model', 'gpt2-nano', *SERVER)['tokens'], 8 * 128)

    def test_what_is_frozen_has_no_states(self):
        flags = ['--model', 'llama-7b', '--batch', '1', *ALONE]
        text = self.succeed(program('elixirctl'), 'plan', *flags, '--freeze', 'layers').output
        self.assertIn('6.74 B parameters, 6.48 B of them frozen', text)
        # With a block for every chunk nothing of it is fetched again, but for the token embedding and
        # the output projection, which share a long block.
        rest = self.plan(*flags, '--gpu-memory', '60GiB', '--freeze', r'layers\.([0-9]|[12][0-9])\.',
                         '--gpu-state-share', '0')
        layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
        self.assertEqual(rest['frozen_params'], 30 * layer)
        run = rest['long_numel'] // rest['chunk_numel']
        self.assertEqual(rest['rcache_blocks'] + 2 * run, rest['n_chunks'])
        self.assertLess(rest['bytes']['step']['h2d'], 4 * GIB)
        # The last one is of a kind that takes some matchers for ever.
        for expression, says in (('no_such', 'nothing is frozen'), ('.', 'nothing is left'), ('[', ''), ('', ''),
                                 ('(.*)*(.*)*(.*)*x$', '')):
            self.assertIn(says, self.refused(INVALID_ARGUMENT, 'plan', *flags, '--freeze', expression))

    def test_what_is_lacking_counts_activations(self):
        """Where these alone are too large, by every row and by both commands."""
        model = ['--model', 'gpt2-4b', '--batch', '400']
        rows = {row['strategy']: row for row in self.plan(*model, *SERVER, '--compare')['rows']}
        message = self.refused(DOES_NOT_FIT, 'plan', *model, *SERVER)
        activations = float(re.search(r'([\d.]+) GiB too much', message).group(1))
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

    def test_a_profile_says_its_type(self):
        model = ['--model', 'gpt2-nano', '--batch', '1']
        profile = self.profile(*model, '--dtype', 'fp16')
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
        self.assertIn('one GPU has no other GPU to exchange with', said)


class MoreQuestions(Answers):
    MODEL = ['--model', 'gpt2-4b', '--batch', '8']

    def test_strategies_side_by_side(self):
        model = ['--profile', self.profile(*self.MODEL), *SERVER]
        rows = self.plan(*model, '--compare')['rows']
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
        self.assertAlmostEqual(best, self.step(*model))
        self.assertFalse(rows[2]['fits'])  # 16 bytes a parameter
        self.assertRegex(rows[2]['lacks'], r'GPU [\d.]+ GiB')
        for row in rows[2:]:
            if row['fits']:
                self.assertGreaterEqual(1.001 * row['step_s'], best, row['strategy'])
        self.refused(INVALID_ARGUMENT, 'plan', *self.MODEL, *SERVER, '--compare', '--largest', 'batch')
        text = self.succeed(program('elixirctl'), 'plan', *model, '--compare').output
        self.assertIn('tokens/s', text)

    def test_zero_3_keeps_what_is_frozen_on_its_gpus(self):
        """So that on one GPU it is what DDP is."""
        rows = self.plan('--model', 'gpt2-4b', '--batch', '1', '--freeze', r'h\.', '--gpus', '1',
                         *SERVER, '--compare')['rows']
        step_s = {row['strategy']: row['step_s'] for row in rows}
        self.assertEqual(step_s['zero3'], step_s['ddp'])

    def test_what_changes_would_bring(self):
        model = [*self.MODEL, *ALONE]
        rows = self.plan(*model, '--what-if')['rows']
        self.assertTrue(all(list(row) == ['change', 'step_s', 'tokens_s', 'fits', 'lacks'] for row in rows), rows)
        told = {row['change']: row for row in rows}
        self.assertEqual(rows[0]['change'], 'as it is')
        self.assertAlmostEqual(rows[0]['step_s'], self.step(*model))
        # The same, by flags.
        self.assertAlmostEqual(told['twice the host memory']['step_s'],
                               self.step(*self.MODEL, *SERVER, '--gpus', '1', '--host-memory', '8TiB'))
        self.assertAlmostEqual(told['--batch 16']['step_s'], self.step(*self.MODEL[:2], '--batch', '16', *ALONE))
        self.assertAlmostEqual(told['--seq 512']['step_s'], self.step(*model, '--seq', '512'))
        self.assertIn('as it is', self.succeed(program('elixirctl'), 'plan', *model, '--what-if').output)
        self.refused(INVALID_ARGUMENT, 'plan', *model, '--what-if', '--compare')
        self.refused(INVALID_ARGUMENT, 'plan', *model, '--what-if', '--tokens', '1e9')

    def test_a_refusal_names_the_least_that_would_do(self):
        profile = ['--profile', self.profile(*self.MODEL), *SERVER]
        machine = {'--gpus': '1', '--host-memory': '32GiB', '--gpu-memory': '16GiB'}

        def flags(**changed):
            return [word for pair in {**machine, **changed}.items() for word in pair]

        said = re.search(r'It fits with (\d+) GiB of host memory, or GPUs of (\d+) GiB, or (\d+) GPUs',
                         self.refused(DOES_NOT_FIT, 'plan', *profile, *flags()))
        host, gpu, gpus = map(int, said.groups())
        for flag, value, unit in (('--host-memory', host, 'GiB'), ('--gpu-memory', gpu, 'GiB'), ('--gpus', gpus, '')):
            self.plan(*profile, *flags(**{flag: f'{value}{unit}'}))
            self.refused(DOES_NOT_FIT, 'plan', *profile, *flags(**{flag: f'{value - 1}{unit}'}))

    def test_rates_by_flags_and_gpus_by_name(self):
        model = ['--profile', self.profile(*self.MODEL), *ALONE]
        self.assertLess(self.step(*model, '--link-gb-s', '100', '--gpu-memory', '8GiB'),
                        self.step(*model, '--link-gb-s', '4', '--gpu-memory', '8GiB'))
        self.assertLess(self.step(*model, '--cpu-gparam-s', '50'), self.step(*model, '--cpu-gparam-s', '1'))
        self.assertLess(self.step(*model, '--gpu', 'h100'), self.step(*model, '--gpu', 'rtx3090'))
        self.assertIn('did you mean rtx4090', self.refused(INVALID_ARGUMENT, 'plan', *model, '--gpu', 'rtx4091'))
        # Without a measured host one is assumed, and said so.
        environment = {'ELIXIR_MACHINE_FILE': os.path.join(self.folder, 'none.json')}
        finished = self.succeed(program('elixirctl'), 'plan', *model[:2], '--gpu', 'rtx4090', '--host-memory', '96GiB',
                                environment=environment)
        self.assertIn('has not been measured', finished.errors)

    def test_adapters(self):
        config = ['--config', os.path.join(harness.REPOSITORY, 'examples', 'configs', 'llama-3-8b.json'), '--batch', '1']
        whole = self.plan(*config, *ALONE)
        adapted = self.plan(*config, *ALONE, '--adapters', '16')
        # PEFT's count for queries and values: 32 x 16 x (4096 + 4096 + 4096 + 1024).
        self.assertEqual(adapted['params'] - adapted['frozen_params'], 32 * 16 * (4096 + 4096 + 4096 + 1024))
        self.assertEqual(adapted['frozen_params'], whole['params'])
        self.assertLess(adapted['bytes']['host']['states'], 0.01 * whole['bytes']['host']['states'] + GIB)
        self.assertLess(adapted['predicted']['step_s'], whole['predicted']['step_s'])
        for flags in (['--adapters', '0'], ['--adapters', '16,no_such_name'], ['--adapters', '8', '--freeze', 'layers']):
            self.assertIn('--adapters', self.refused(INVALID_ARGUMENT, 'plan', *config, *ALONE, *flags))

    def test_the_largest(self):
        rows = (('batch', '--batch'), ('seq', '--seq'), ('layers', '--layers'))
        for what, flag in rows if NIGHTLY else rows[:1]:
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
        times = [float(re.search(r'([\d.]+) ms', point.toxml()).group(1)) for point in points]
        for less, more in zip(times, times[1:]):
            # Spare slots are taken for 3 %, which more memory may leave just below that.
            self.assertLessEqual(more, 1.035 * less, 'more memory is not slower')
        self.assertLess(times[-1], times[0])


class Documentation(Answers):
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
        """scripts/machine_table.py writes it. By default one model is asked about."""
        page = self.table('scripts/machine_table.py')
        rows = re.findall(r'^\| `(\w+)` \| (.*) \|$', page, re.M)
        models = machine_table.MODELS if NIGHTLY else machine_table.MODELS[:1]
        for i, (name, model) in enumerate(models):
            with self.subTest(model=name):
                said = machine_table.column(os.path.dirname(program('elixirctl')), model)
                self.assertEqual({machine: cells.split(' | ')[i] for machine, cells in rows}, said)

    def test_the_table_of_regions_is_what_plan_says(self):
        """scripts/region_table.py writes it. By default one column is asked about."""
        page = self.table('scripts/region_table.py')
        rows = re.findall(r'^\| (\w+, \d+ GiB) \| (.*) \|$', page, re.M)
        self.assertEqual(len(rows), len(region_table.MACHINES))
        for i, (name, model, batch) in enumerate(region_table.columns()):
            if not NIGHTLY and i > 0:
                continue
            with self.subTest(column=name):
                said = region_table.column(os.path.dirname(program('elixirctl')), model, batch)
                self.assertEqual({machine: cells.split(' | ')[i] for machine, cells in rows}, said)

    def test_activations_in_host_memory_make_sequences_longer(self):
        """The sentence behind the table of regions."""
        value, on_device = region_table.longest(os.path.dirname(program('elixirctl')))
        self.assertGreater(value, 1.8 * on_device)
        with open(os.path.join(harness.REPOSITORY, 'docs', 'planner.md'), encoding='utf-8') as page:
            self.assertIn(f'{value:,} tokens, and {on_device:,} without', page.read())


if __name__ == '__main__':
    harness.main()
