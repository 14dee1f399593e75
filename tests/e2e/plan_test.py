"""The planner as a user meets it: elixirctl plan, and train_gpt2 that chooses, shows and carries out a
plan, and says afterwards how it was. tests/planner asks make_plan() about plans themselves."""

import json
import os
import re
import xml.dom.minidom

import harness
from harness import NIGHTLY, program

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

    def test_twelve_answers_for_people(self):
        text = self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-4b', '--machine', SERVER)
        labels = [line[:12].strip() for line in text.lines if not line.startswith(' ')]
        labels = [label for label in labels if label != 'swing']  # only if it is worth a word
        self.assertEqual(labels, ['fits', 'takes', 'model', 'regions', 'GPUs', 'chunks', 'rCache', 'states', 'GPU memory',
                                  'host memory', 'a step moves', 'predicted', 'of it'])

    def test_a_profile_in_the_model_s_place(self):
        profile = self.path('profile.json')
        self.succeed(program('elixirctl'), 'profile', '--model', 'gpt2-4b', '--batch', '4', '--seq',
                     '1024', '--output', profile)
        self.assertEqual(self.plan('--profile', profile, '--machine', SERVER),
                         self.plan('--model', 'gpt2-4b', '--batch', '4', '--machine', SERVER))

    def test_what_is_refused_ends_with_its_code(self):
        no_machine = self.path('no-machine.json')
        for code, flags, text in (
                (INVALID_ARGUMENT, ['--model', 'gpt2-4x', '--machine', SERVER], 'gpt2-4b'),
                (DOES_NOT_FIT, ['--model', 'gpt2-20b', '--machine', SERVER, '--host-memory', '64GiB'],
                 'in host memory'),
                (BAD_INPUT, ['--model', 'gpt2-4b', '--machine', self.server(2, d2h_gb_s=-1)], 'd2h_gb_s'),
                (BAD_INPUT, ['--model', 'gpt2-4b', '--machine', no_machine], no_machine)):
            with self.subTest(flags=flags):
                self.assertIn(text, self.refused(code, program('elixirctl'), 'plan', *flags))

    def test_the_paper_s_table_7(self):
        """With the profiles of LibTorch's own operators, not those written down by hand."""
        with open(TABLE, encoding='utf-8') as file:
            cells = CELL.findall(file.read())
        self.assertEqual(len(cells), 48)
        for model, gpus, batch, elixir, _, _ in cells if NIGHTLY else cells[::7]:
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
                             steps=22)
        self.assertRegex(planned.output, r'rCache +\d+ blocks')
        self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step')
        self.assertRegex(planned.errors, r'plan_check step measured [\d.]+ ms predicted')
        self.assertEqual(xml.dom.minidom.parse(picture).documentElement.tagName, 'svg')
        with open(trace, encoding='utf-8') as file:
            self.assertGreater(len(json.load(file)['traceEvents']), 20)
        plain = self.train('--batch', '2', '--seq', '32', '--threads', '1', steps=22)
        self.assertNotIn('predicted', plain.output)
        self.assertEqual(planned.checksum, plain.checksum)  # the speed, never the numbers

    def test_the_plan_keeps_to_what_is_asked_beside_it(self):
        for flags in (['--exchange', 'collective', '--dtype', 'fp16'],
                      ['--exchange', 'host', '--dtype', 'bf16', '--update', 'immediate',
                       '--accumulate', '6', '--checkpoint-activations']):
            planned = self.train(*PLANNED, *flags)
            self.assertRegex(planned.output, r'predicted +[\d.]+ ms a step', flags)

    def rates(self):
        """The path of what the first start has measured."""
        folder = os.path.join(self.environment['XDG_CACHE_HOME'], 'elixir')
        found = [name for name in os.listdir(folder) if name.startswith('rates-') and name.endswith('.json')]
        self.assertEqual(len(found), 1, found)
        return os.path.join(folder, found[0])

    def test_the_first_start_measures_and_plans_and_the_second_does_neither(self):
        first = self.train(*PLANNED, ranks=2)
        self.assertEqual(first.errors.count('event=first_probe '), 1, first)
        self.assertIn('limit_s=600', first.errors)  # the harness says so
        self.assertIn('measuring memory', first.errors)  # its progress
        self.assertNotIn('plan_reused', first.errors)
        second = self.train(*PLANNED, ranks=2)
        self.assertNotIn('first_probe', second.errors)
        self.assertIn('plan_reused', second.errors)
        self.assertEqual(self.plan_lines(second), self.plan_lines(first))
        self.assertEqual(second.checksum, first.checksum)
        # elixirctl uses the same rates, until they are forgotten.
        plan = [program('elixirctl'), 'plan', '--model', 'gpt2-nano']
        self.succeed(*plan)
        forgotten = self.succeed(program('elixirctl'), 'probe', '--forget')
        self.assertEqual(forgotten.output.count('removed '), 2, forgotten)
        self.assertIn('elixirctl probe', self.refused(BAD_INPUT, *plan))
        self.assertIn('event=first_probe ', self.train(*PLANNED).errors)

    def plan_lines(self, finished):
        return re.findall(r'^(?:\[rank 0\] )?((?:fits|chunks|rCache|states|predicted|of it) .*)$', finished.output, re.M)

    def test_nothing_is_planned_or_measured_if_that_is_asked_for(self):
        for flags, environment in ((['--no-plan'], {}), ([], {'ELIXIR_PROBE': '0'})):
            trained = self.succeed(program('train_gpt2'), '--steps', '1', *PLANNED, *flags, environment=environment)
            self.assertNotIn('first_probe', trained.errors)
            self.assertNotIn('predicted', trained.output)
        self.assertIn('reason="this machine has not been measured, and ELIXIR_PROBE is 0', trained.errors)
        self.assertFalse(os.path.exists(os.path.join(self.environment['XDG_CACHE_HOME'], 'elixir')))
        self.refused(INVALID_ARGUMENT, program('train_gpt2'), '--no-plan', '--plan', 'x')
        self.stop_idle_elixird()

    def test_a_rate_that_was_off_is_named_and_kept_unless_other_work_ran(self):
        self.train(*PLANNED)
        with open(self.rates(), encoding='utf-8') as file:
            probed = json.load(file)
        # Of a device so slow that compute takes most of the predicted step.
        believed = {**probed, **{name: probed[name] / 20 for name in ('gpu_tflops', 'gpu_fp32_tflops')},
                    'gpu_memory_gb_s': probed['gpu_memory_gb_s'] / 20, 'probed': '2100-01-01T00:00:00Z',
                    'gpu_launch_us': 20 * probed['gpu_launch_us'],
                    'gpu_attention_tflops': [[head, forward / 20, backward / 20]
                                             for head, forward, backward in probed['gpu_attention_tflops']]}
        with open(self.rates(), 'w', encoding='utf-8') as file:
            json.dump(believed, file)
        trained = self.train(*PLANNED, steps=22)
        self.assertRegex(trained.errors, r'plan_check .*compute took [\d.]+ x its predicted time \(gpu_tflops')
        with open(self.rates(), encoding='utf-8') as file:
            after = json.load(file)
        kept = 'event=rates_kept' in trained.errors
        self.assertNotEqual(kept, 'event=rates_not_kept' in trained.errors, trained)
        self.assertEqual(kept, after['gpu_tflops'] > believed['gpu_tflops'])
        self.assertEqual(kept, 'gpt2-nano' in str(after['notes']))

    def test_a_machine_file_that_does_not_serve(self):
        path = self.write('machine.json', {'device': 'cuda (another)', 'gpus': 1})
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
        for gpus, share in ((1, '0.5'), (2, '0')):
            machine = self.server(gpus, gpu_memory_bytes=64 << 20)
            self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--batch', '2', '--seq', '32',
                         '--dtype', 'fp32', '--no-checkpoint-activations', '--machine', machine,
                         '--gpu-state-share', share, '--output', plan)
            with open(plan, encoding='utf-8') as file:
                chunks = json.load(file)['n_chunks']
            trained = self.train('--plan', plan, '--batch', str(2 // gpus), '--seq', '32', '--threads', '1',
                                 ranks=gpus)
            self.assertIn(f'chunks={chunks} ', trained.errors)

    def test_plans_that_are_not_carried_out(self):
        """By the program; what a rank refuses is in tests/client/planned_run_test.cpp."""
        plan = self.path('plan.json')
        train = [program('train_gpt2'), '--steps', '1', *PLANNED[:4], '--plan', plan]
        self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--seq', '32', '--machine',
                     self.server(2), '--output', plan)
        # It recomputes activations, is of two ranks and for BF16.
        text = self.refused(INVALID_ARGUMENT, *train, '--checkpoint-activations', '--dtype', 'fp32')
        self.assertIn('--checkpoint-activations: the plan', text)  # in which all blocks keep everything
        self.assertIn('--dtype fp32: the plan', text)
        self.assertIn('2 GPUs', self.refused(INVALID_ARGUMENT, *train))
        self.write('plan.json', '{}')
        self.assertIn('is missing', self.refused(BAD_INPUT, *train))
        self.assertIn('--gpu-memory', self.refused(
            INVALID_ARGUMENT, program('train_gpt2'), '--memory-picture', self.path('x.svg')))
        text = self.refused(DOES_NOT_FIT, program('train_gpt2'), '--steps', '1', *PLANNED[:4],
                            '--gpu-memory', '1MiB')
        self.assertIn('cannot fit', text)


if __name__ == '__main__':
    harness.main()
