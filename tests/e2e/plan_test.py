"""The planner as a user meets it: elixirctl plan, estimate, simulate-cache; train_gpt2 that chooses,
shows and carries out a plan, and says afterwards how it was."""

import json
import os
import re
import resource
import subprocess
import xml.dom.minidom

import harness
from harness import cpu_s_of, least_of, program

INVALID_ARGUMENT, DOES_NOT_FIT, BAD_INPUT = 2, 3, 4
GIB = 1 << 30
SERVER = os.path.join(harness.REPOSITORY, 'examples', 'machine_a100x4.json')
# Elixir v2, table 4: h2d, d2h, V_g, V_c, g2g by GPUs; four of them with table 7's NVLink.
HARDWARE = {1: (22, 16, 50, 5, 0), 2: (50, 40, 100, 6.5, 201), 4: (70, 60, 200, 7.5, 200)}
TABLE = os.path.join(harness.REPOSITORY, 'tests', 'planner', 'paper_table.h')
CELL = re.compile(r'\{"([\w-]+)", (\d), (\d+), ([\d.]+), ([\d.]+), ([\d.]+)\}')

PLANNED = ['--batch', '2', '--seq', '32', '--threads', '1', '--gpu-memory', '16MiB']


class PlanTest(harness.ElixirTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, value):
        with open(self.path(name), 'w', encoding='utf-8') as file:
            file.write(value if isinstance(value, str) else json.dumps(value))
        return self.path(name)

    def server(self, gpus=4, **fields):
        h2d, d2h, gpu, cpu, g2g = HARDWARE[gpus]
        machine = {'gpus': gpus, 'gpu_memory_bytes': 40 * GIB, 'host_memory_bytes': 500 * GIB,
                   'd2h_gb_s': d2h, 'h2d_gb_s': h2d, 'joint_gb_s': 0, 'g2g_gb_s': g2g,
                   'gpu_update_gparam_s': gpu, 'cpu_update_gparam_s': cpu, 'dram_gb_s': 200,
                   'gpu_tflops': 185, 'gpu_half_tokens': 2048, 'copies_hidden': 0.25}
        machine.update(fields)
        return self.write(f'machine{gpus}.json', machine)

    def plan(self, *flags):
        return json.loads(self.succeed(program('elixirctl'), 'plan', '--json', *flags).output)

    def refused(self, code, *command):
        finished = self.run_program(*command)
        self.assertEqual(finished.exit_code, code, finished)
        return finished.errors


class Command(PlanTest):
    def test_a_plan_says_what_it_promises(self):
        plan = self.plan('--model', 'gpt2-10b', '--batch', '8', '--seq', '1024', '--gpus', '4',
                         '--gpu-memory', '40GiB', '--host-memory', '500GiB', '--machine', SERVER)
        for field in ('chunk_numel', 'n_chunks', 'waste_ratio', 'rcache_blocks', 'placement', 'exchange',
                      'swing_stride', 'equation_stride', 'u_allowed_bytes', 'benefit_i', 'benefit_j',
                      'first', 'predicted', 'bytes', 'update', 'spare_slots', 'long_blocks', 'long_numel'):
            self.assertIn(field, plan)
        for field in ('step_s', 'compute_s', 'h2d_s', 'd2h_s', 'update_s', 'binding', 'tflops', 'swing_why'):
            self.assertIn(field, plan['predicted'])
        self.assertEqual(sum(plan['placement'].values()), plan['n_chunks'])
        self.assertLess(plan['waste_ratio'], 0.05)
        self.assertGreaterEqual(plan['predicted']['step_s'], plan['predicted']['compute_s'])
        self.assertLessEqual(plan['bytes']['gpu']['total'], 40 * GIB)
        again = self.plan('--model', 'gpt2-10b', '--machine', SERVER)
        self.assertEqual(again, plan)

    def test_ten_lines_for_people(self):
        text = self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-4b', '--machine', SERVER)
        swing = [line for line in text.lines if line.startswith('swing ')]
        self.assertEqual(len(text.lines), 10 + len(swing), text)

    def test_a_profile_in_the_model_s_place(self):
        profile = self.path('profile.json')
        self.succeed(program('elixirctl'), 'profile', '--model', 'gpt2-4b', '--batch', '4', '--seq',
                     '1024', '--output', profile)
        self.assertEqual(self.plan('--profile', profile, '--machine', SERVER),
                         self.plan('--model', 'gpt2-4b', '--batch', '4', '--machine', SERVER))
        with open(profile, encoding='utf-8') as file:
            whole = json.load(file)
        least = {field: whole[field] for field in ('params', 'steps', 'checkpoint_regions',
                                                   'activation_bytes', 'buffer_bytes', 'dtype_bytes')}
        least['params'] = [{key: param[key] for key in ('name', 'numel', 'shared')}
                           for param in least['params']]
        plan = self.plan('--profile', self.write('least.json', least), '--machine', SERVER)
        self.assertGreater(plan['predicted']['step_s'], 0)

    def test_the_largest_model_takes_little(self):
        machine = self.server(4, host_memory_bytes=5000 * GIB, gpu_memory_bytes=80 * GIB)
        profile = self.path('profile.json')
        for limit_s, command in (
                (1, ['profile', '--model', 'opt-175b', '--batch', '1', '--output', profile]),
                (2, ['plan', '--profile', profile, '--machine', machine])):
            def once(command=command):
                return cpu_s_of(lambda: self.succeed(program('elixirctl'), *command))
            self.assertLess(least_of(once, limit_s), limit_s, command)
        # Of the greatest child so far, in KiB: LibTorch's own code is most of it.
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 1 << 20)

    def test_simulate_cache(self):
        steps = '[[0],[1,2],[3],[3],[1,2],[0]]'
        count = self.succeed(program('elixirctl'), 'simulate-cache', '--steps', steps, '--blocks', '2',
                             '--json').output
        self.assertEqual(json.loads(count), {'misses': 6, 'moved': 12})
        self.assertIn('2', self.refused(INVALID_ARGUMENT, program('elixirctl'), 'simulate-cache',
                                        '--steps', steps, '--blocks', '1'))

    def test_estimate(self):
        rows = json.loads(self.succeed(program('elixirctl'), 'estimate', '--params', '7.5e9',
                                       '--gpus', '64', '--json').output)
        self.assertAlmostEqual(rows['zero1']['gpu_bytes'], 31.4e9, delta=0.05e9)
        self.assertAlmostEqual(rows['zero2']['gpu_bytes'], 16.6e9, delta=0.05e9)
        self.assertAlmostEqual(rows['zero3']['gpu_bytes'], 1.88e9, delta=0.01e9)
        for row in ('ddp', 'zero2_offload', 'zero3_offload', 'elixir'):
            self.assertLessEqual({'gpu_bytes', 'host_bytes_per_node', 'by_kind'}, set(rows[row]))
        model = json.loads(self.succeed(program('elixirctl'), 'estimate', '--model', 'gpt2-4b',
                                        '--gpus', '1', '--gpu-memory', '40GiB', '--json').output)
        self.assertTrue(model['elixir']['fits'])
        self.assertFalse(model['ddp']['fits'])
        self.assertGreater(model['elixir']['largest_batch'], 0)

    def test_what_cannot_fit(self):
        profile = self.path('profile.json')
        self.succeed(program('elixirctl'), 'profile', '--model', 'gpt2-20b', '--output', profile)
        beyond = [program('elixirctl'), 'plan', '--profile', profile, '--machine', SERVER, '--host-memory',
                  '64GiB']
        self.assertRegex(self.refused(DOES_NOT_FIT, *beyond), r'host memory.*too few')
        self.assertLess(least_of(lambda: self.run_program(*beyond).seconds, 1), 1)
        text = self.refused(DOES_NOT_FIT, program('elixirctl'), 'plan', '--profile', profile,
                            '--machine', SERVER, '--gpu-memory', '2GiB')
        self.assertRegex(text, r'activations.*more than there are')

    def test_bad_input(self):
        plan = [program('elixirctl'), 'plan']
        model = ['--model', 'gpt2-4b']
        self.assertIn('gpt2-4b', self.refused(INVALID_ARGUMENT, *plan, '--model', 'gpt2-4x',
                                              '--machine', SERVER))
        self.assertIn('--gpus', self.refused(INVALID_ARGUMENT, *plan, *model, '--machine', SERVER,
                                             '--gpus', '0'))
        with open(self.server(2), encoding='utf-8') as file:
            machine = json.load(file)
        for field, value in (('d2h_gb_s', -1), ('gpu_tflops', 0), ('gpus', 0), ('h2d_gb_s', 'fast')):
            text = self.refused(BAD_INPUT, *plan, *model, '--machine', self.write('bad.json', {**machine, field: value}))
            self.assertIn(field, text)
        del machine['cpu_update_gparam_s']
        self.assertIn('cpu_update_gparam_s', self.refused(
            BAD_INPUT, *plan, *model, '--machine', self.write('less.json', machine)))
        profile = {'params': [{'name': 'w', 'numel': 1000, 'shared': False}], 'steps': [[0], [1]],
                   'checkpoint_regions': [], 'activation_bytes': 1, 'buffer_bytes': 1,
                   'dtype_bytes': 2}
        self.assertRegex(self.refused(BAD_INPUT, *plan, '--profile', self.write('p.json', profile),
                                      '--machine', SERVER), 'parameter 1, which is unknown')
        profile['steps'] = [[0], [0]]
        profile['params'][0]['numel'] = 30 * GIB
        self.assertRegex(self.refused(DOES_NOT_FIT, *plan, '--profile', self.write('p.json', profile),
                                      '--machine', SERVER), "parameter 'w' alone needs")
        self.assertIn('machine.json', self.refused(
            BAD_INPUT, *plan, *model, '--machine', self.path('no-machine.json')))

    def test_the_paper_s_table_7(self):
        """With the profiles of LibTorch's own operators, not those written down by hand."""
        with open(TABLE, encoding='utf-8') as file:
            cells = CELL.findall(file.read())
        self.assertEqual(len(cells), 48)
        for model, gpus, batch, elixir, _, _ in cells:
            plan = self.plan('--model', model, '--batch', batch, '--seq', '1024', '--policy', 'paper',
                             '--machine', self.server(int(gpus)))
            ratio = plan['predicted']['tflops'] / float(elixir)
            self.assertLess(abs(ratio - 1), 0.20, f'{model}, {gpus} GPUs, batch {batch}: {ratio}')


class Training(PlanTest):
    def train(self, *flags, steps=2, ranks=1):
        return self.succeed(self.launch(ranks, program('train_gpt2')), '--steps', str(steps),
                            '--checksum', *flags)

    def test_the_plan_is_chosen_shown_and_held_against_the_steps(self):
        picture, trace = self.path('memory.svg'), self.path('predicted.json')
        planned = self.train(*PLANNED, '--memory-picture', picture, '--predicted-trace', trace,
                             steps=12)
        self.assertRegex(planned.output, r'rCache +\d+ blocks')
        self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step')
        self.assertRegex(planned.errors, r'plan_check step measured [\d.]+ ms predicted')
        self.assertEqual(xml.dom.minidom.parse(picture).documentElement.tagName, 'svg')
        with open(trace, encoding='utf-8') as file:
            self.assertGreater(len(json.load(file)['traceEvents']), 20)
        plain = self.train('--batch', '2', '--seq', '32', '--threads', '1', steps=12)
        self.assertNotIn('predicted', plain.output)
        self.assertEqual(planned.checksum, plain.checksum)  # the speed, never the numbers

    def test_the_plan_keeps_to_what_is_asked_beside_it(self):
        for flags in (['--exchange', 'host'], ['--exchange', 'collective'], ['--dtype', 'fp16'],
                      ['--dtype', 'bf16', '--update', 'immediate'], ['--accumulate', '6'],
                      ['--checkpoint-activations']):
            planned = self.train(*PLANNED, *flags)
            self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step', flags)

    def test_a_machine_file_that_does_not_serve(self):
        for machine in ('no JSON', {'device': 'cuda (another)', 'gpus': 1}):
            path = self.write('machine.json', machine)
            planned = self.succeed(program('train_gpt2'), '--steps', '1', *PLANNED,
                                   environment={'ELIXIR_MACHINE_FILE': path})
            self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step')  # measured now
            self.assertIn('machine_file_not_used', planned.errors)
        self.stop_idle_elixird()

    def test_two_ranks_choose_the_same_plan(self):
        """They attach to one job only if they do; from figures that a probe left."""
        path = self.path('machine.json')
        self.succeed(program('elixirctl'), 'probe', '--quick', '--device', 'cpu', '--gpus', '2',
                     environment={'ELIXIR_MACHINE_FILE': path})
        planned = self.succeed(self.launch(2, program('train_gpt2')), '--steps', '2', *PLANNED,
                               environment={'ELIXIR_MACHINE_FILE': path})
        self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step')

    def test_a_plan_from_a_file(self):
        plan = self.path('plan.json')
        make = [program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--batch', '2', '--seq', '32',
                '--dtype', 'fp32', '--no-checkpoint-activations', '--machine']
        sums = set()
        for gpus in (1, 2):
            for share in ('0', '0.5'):
                machine = self.server(gpus, gpu_memory_bytes=64 << 20)
                self.succeed(make, machine, '--gpu-state-share', share, '--output', plan)
                with open(plan, encoding='utf-8') as file:
                    chunks = json.load(file)['n_chunks']
                trained = self.train('--plan', plan, '--batch', str(2 // gpus), '--seq', '32',
                                     '--threads', '1', ranks=gpus)
                self.assertIn(f'chunks={chunks} ', trained.errors)
                if gpus == 1:
                    sums.add(trained.checksum)
        self.assertEqual(len(sums), 1)

    def test_plans_that_are_not_carried_out(self):
        plan = self.path('plan.json')
        machine = self.server(2)
        train = [program('train_gpt2'), '--steps', '1', *PLANNED[:4], '--plan', plan]
        self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--seq', '32', '--machine',
                     machine, '--no-checkpoint-activations', '--output', plan)
        self.assertIn('2 GPUs', self.refused(INVALID_ARGUMENT, *train))
        self.assertIn('--rcache-blocks', self.refused(INVALID_ARGUMENT, *train, '--rcache-blocks', '3'))
        self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--seq', '32', '--machine',
                     self.server(1), '--output', plan)
        # It recomputes activations and is for BF16: masters of FP16 take 2 bytes more.
        refused = self.refused(INVALID_ARGUMENT, *train)
        self.assertIn('--checkpoint-activations', refused)
        for dtype in ('fp32', 'fp16'):
            self.assertIn('the plan is for bf16', self.refused(
                INVALID_ARGUMENT, *train, '--checkpoint-activations', '--dtype', dtype))
        self.assertIn('--update immediate', self.refused(
            INVALID_ARGUMENT, *train, '--checkpoint-activations', '--dtype', 'bf16', '--update',
            'immediate'))
        self.write('plan.json', '{}')
        self.assertIn('is missing', self.refused(BAD_INPUT, *train))
        self.assertIn('--gpu-memory', self.refused(
            INVALID_ARGUMENT, program('train_gpt2'), '--memory-picture', self.path('x.svg')))
        text = self.refused(DOES_NOT_FIT, program('train_gpt2'), '--steps', '1', *PLANNED[:4],
                            '--gpu-memory', '1MiB')
        self.assertRegex(text, 'cannot fit')


if __name__ == '__main__':
    harness.main()
