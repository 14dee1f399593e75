"""The wheel in an environment of its own: three lines train, and one libtorch is loaded."""

import os
import subprocess
import sys
import tempfile
import unittest

import python_case

PROGRAM = """
import elixir, torch
model = torch.nn.Linear(8, 8)
optimizer = elixir.AdamW(model, lr=1e-2)
losses = []
for _ in range(20):
    loss = (model(torch.ones(4, 8)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
with open('/proc/self/maps') as maps:
    print(sorted({line.split()[-1] for line in maps if 'libtorch_cpu.so' in line}))
print(elixir.__file__)
"""


class Wheel(unittest.TestCase):
    def run_well(self, *command, **how):
        finished = subprocess.run(command, capture_output=True, text=True, check=False, **how)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        return finished.stdout

    def test_three_lines_in_a_fresh_environment(self):
        with tempfile.TemporaryDirectory(prefix='elixir-wheel-test-') as folder:
            packs = os.path.join(python_case.HERE, '..', '..', 'scripts', 'pack_wheel.py')
            wheel = self.run_well(sys.executable, packs, '--build', python_case.BUILD, '--out', folder).strip()
            self.assertLess(os.path.getsize(wheel), 20e6)
            venv = os.path.join(folder, 'venv')
            self.run_well(sys.executable, '-m', 'venv', venv)
            python = os.path.join(venv, 'bin', 'python')
            site = self.run_well(python, '-c', 'import site; print(site.getsitepackages()[0])').strip()
            import torch
            with open(os.path.join(site, 'torch.pth'), 'w', encoding='utf-8') as file:
                file.write(os.path.dirname(os.path.dirname(torch.__file__)))
            self.run_well(python, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index', wheel)
            run = os.path.join(folder, 'run')
            os.mkdir(run, 0o700)
            environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'ELIXIRD')}
            output = self.run_well(python, '-c', PROGRAM, cwd=folder, env={**environment, 'ELIXIR_RUNTIME_DIR': run})
            loaded, file = output.splitlines()
            self.assertEqual(loaded.count('libtorch_cpu.so'), 1)
            self.assertTrue(file.startswith(site), file)
            self.run_well(os.path.join(site, 'elixir', 'bin', 'elixirctl'), '--version')


if __name__ == '__main__':
    unittest.main()
