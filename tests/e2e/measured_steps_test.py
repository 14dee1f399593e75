"""Steps that elixirctl plan predicts, beside those that GPUs were measured to take (bench/RESULTS.md, "On a GPU" and "On
an H200"; bench/measured). GPT-2 with 8 x 1024 tokens in BF16."""

import json
import os

import harness
from harness import program

# What the hosts of these GPUs did in trainings. `update`: G parameters a second, fitted to the rows of deferred and
# immediate updates, 1.56 G in 381 and 326 ms. `together`: GB/s of updates and copies, fitted to the row of early updates
# with swing chunks. A fitted row is no prediction.
HOST_MEMORY = '126GiB'
H100_HOST = {'cpu_update_gparam_s': 4.4, 'joint_gb_s': 89, 'together': 130}
UPDATE_BYTES = 26

ON_HOST = ['--gpu-state-share', '0']
ROWS = (  # machine, model, GPU memory, flags, measured ms, the longest leg of the measured step, fitted
    ('h100', 'small', '8GiB', [], 36.6, 'compute', False),
    ('h100', 'xl', '16GiB', [], 255, 'compute', False),
    ('h100', '4b', '40GiB', [], 478, 'compute', False),
    ('h100', '10b', '80GiB', [], 1277, 'update', False),
    ('h100', 'xl', '16GiB', [*ON_HOST, '--update', 'deferred', '--swing-stride', '0'], 504, 'update', True),
    ('h100', 'xl', '16GiB', [*ON_HOST, '--update', 'immediate', '--swing-stride', '0'], 427, 'update', True),
    ('h100', 'xl', '16GiB', [*ON_HOST, '--update', 'early', '--swing-stride', '0'], 416, 'update', False),
    ('h100', 'xl', '16GiB', [*ON_HOST, '--update', 'deferred', '--swing-stride', '3'], 571, None, False),
    ('h100', 'xl', '16GiB', [*ON_HOST, '--update', 'early', '--swing-stride', '4'], 470, None, True),
    ('h200', 'small', '8GiB', [], 39.95, 'compute', False),
    ('h200', 'xl', '16GiB', [], 257.8, 'compute', False),
    ('h200', '4b', '40GiB', [], 487.2, 'compute', False))
MOST_APART = 0.12


class MeasuredSteps(harness.ElixirTest):
    def machine_file(self, name, host=None):
        """The example's, with another host."""
        with open(os.path.join(harness.REPOSITORY, 'examples', 'machines', f'{name}.json'), encoding='utf-8') as file:
            machine = json.load(file)
        if host:
            machine.update({key: value for key, value in host.items() if key != 'together'})
            machine['cpu_update_beside_copies_gparam_s'] = (host['together'] - host['joint_gb_s']) / UPDATE_BYTES
        return self.written(name, machine)

    def written(self, name, machine):
        path = os.path.join(self.folder, f'{name}.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(machine, file)
        return path

    def profile(self, model):
        path = os.path.join(self.folder, f'{model}.profile.json')
        if not os.path.exists(path):
            flags = ['--no-checkpoint-activations'] if model == 'small' else []
            # These trainings computed whole regions again, also operators whose results nobody reads.
            self.succeed(program('elixirctl'), 'profile', '--model', f'gpt2-{model}', '--batch', '8', '--seq', '1024',
                         '--output', path, *flags, environment={'ELIXIR_STOP_EARLY': '0'})
        return path

    def plan(self, machine, model, memory, flags=()):
        return json.loads(self.succeed(
            program('elixirctl'), 'plan', '--json', '--machine', machine, '--profile', self.profile(model),
            '--gpu-memory', memory, '--host-memory', HOST_MEMORY, *flags).output)['predicted']

    def test_steps_are_as_measured(self):
        for name, model, memory, flags, measured_ms, binds, fitted in ROWS:
            machine = self.machine_file(name, H100_HOST if name == 'h100' else None)
            with self.subTest(machine=name, model=model, flags=flags):
                told = self.plan(machine, model, memory, flags)
                ratio = 1e3 * told['step_s'] / measured_ms
                print(f'{name} {model} {" ".join(flags)}: {1e3 * told["step_s"]:.1f} ms predicted, {measured_ms} measured, '
                      f'{ratio:.2f}{" (fitted)" if fitted else ""}; {told["binding"]} binds')
                self.assertLess(abs(ratio - 1), MOST_APART)
                if binds:
                    self.assertEqual(told['binding'], binds)

    def test_a_probe_of_an_earlier_release_will_do(self):
        """It does not say the rates of other operators: as it was written, of version 2."""
        with open(os.path.join(harness.REPOSITORY, 'bench', 'measured', 'h200_2026-11-26.json'), encoding='utf-8') as file:
            machine = self.written('probe', json.load(file)['probe'])
        for _, model, memory, flags, measured_ms, binds, _ in (row for row in ROWS if row[0] == 'h200'):
            with self.subTest(model=model):
                told = self.plan(machine, model, memory, flags)
                self.assertLess(abs(1e3 * told['step_s'] / measured_ms - 1), MOST_APART)
                self.assertEqual(told['binding'], binds)

    def test_products_alone_are_far_off(self):
        """The control: what a profile says that only counts operations."""
        with open(self.profile('xl'), encoding='utf-8') as file:
            counted = json.load(file)
        described = self.plan(self.machine_file('h200'), 'xl', '16GiB')
        for member in ('step_bytes', 'step_kernels', 'step_products', 'step_attention_flops'):
            del counted[member]
        with open(self.profile('xl'), 'w', encoding='utf-8') as file:
            json.dump(counted, file)
        alone = self.plan(self.machine_file('h200'), 'xl', '16GiB')
        self.assertIsNone(alone['compute'])
        self.assertLess(alone['compute_s'], 0.75 * described['compute_s'])


if __name__ == '__main__':
    harness.main()
