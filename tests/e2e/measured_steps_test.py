"""Compute that elixirctl plan predicts from operators, beside what GPUs were measured to take (bench/RESULTS.md, "On an
H100" and "On an H200"; bench/measured). GPT-2 with 8 x 1024 tokens in BF16."""

import json
import os

import harness
from harness import program

# torch's FlashAttention on the H200 at 1,024 tokens: head width, forward, backward (bench/measured). The H100 was not asked.
ATTENTION = [[64, 313.4, 277.1], [128, 431.1, 287.4]]
# Fitted to the H200's row of xl, which is thus no prediction.
MEMORY_GB_S = 3000
LAUNCH_US = 5

H100 = {'gpu_tflops': 768, 'gpu_memory_bytes': 85_000_000_000}  # what its probe said
ROWS = (  # machine, model, flags, measured ms, how far a prediction may be off
    ('h200', 'gpt2-xl', [], 230.1, 0.12), ('h200', 'gpt2-4b', [], 430.5, 0.12),
    ('h100', 'gpt2-xl', [], 244, 0.12), ('h100', 'gpt2-4b', [], 447, 0.12),
    ('h100', 'gpt2-small', ['--no-checkpoint-activations'], 35.2, 0.12),
    # 31 in another run: by launches of a trainer that waits for other threads.
    ('h200', 'gpt2-small', ['--no-checkpoint-activations'], 37.85, 0.20))


class MeasuredSteps(harness.ElixirTest):
    def machine_file(self, name, **changes):
        with open(os.path.join(harness.REPOSITORY, 'bench', 'measured', 'h200_2026-11-26.json'), encoding='utf-8') as file:
            machine = json.load(file)['probe']
        machine.update(host_memory_bytes=1 << 40, gpu_memory_gb_s=MEMORY_GB_S, gpu_launch_us=LAUNCH_US,
                       gpu_attention_tflops=ATTENTION, gpu_peak_tflops=989)
        machine.update(H100 if name == 'h100' else {})
        machine.update(changes)
        path = os.path.join(self.folder, f'{name}.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump({key: value for key, value in machine.items() if value is not None}, file)
        return path

    def compute_of(self, machine, model, flags):
        """(seconds of a pass, its parts)"""
        told = json.loads(self.succeed(program('elixirctl'), 'plan', '--json', '--machine', machine, '--model', model,
                                       '--batch', '8', '--seq', '1024', *flags).output)['predicted']
        return sum(told['compute'].values()), told['compute'], told

    def test_compute_is_as_measured(self):
        for name, model, flags, measured_ms, apart in ROWS:
            with self.subTest(machine=name, model=model):
                seconds, parts, _ = self.compute_of(self.machine_file(name), model, flags)
                ratio = 1e3 * seconds / measured_ms
                print(f'{name} {model}: {1e3 * seconds:.1f} ms predicted, {measured_ms} measured, {ratio:.2f}:',
                      *(f'{part} {1e3 * value:.1f}' for part, value in parts.items()))
                self.assertLess(abs(ratio - 1), apart)

    def test_products_alone_are_far_off(self):
        """The control: as before, and as a machine file without gpu_memory_gb_s is still read."""
        _, _, told = self.compute_of(self.machine_file('h200'), 'gpt2-xl', [])
        alone = json.loads(self.succeed(
            program('elixirctl'), 'plan', '--json', '--machine', self.machine_file('h200', gpu_memory_gb_s=None), '--model',
            'gpt2-xl', '--batch', '8', '--seq', '1024').output)['predicted']
        self.assertIsNone(alone['compute'])
        self.assertLess(alone['compute_s'], 0.75 * told['compute_s'])


if __name__ == '__main__':
    harness.main()
