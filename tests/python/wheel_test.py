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


class Environment(unittest.TestCase):
    """A fresh environment that sees this one's torch, and what pip puts there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='elixir-wheel-test-')
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.run_well(sys.executable, '-m', 'venv', os.path.join(self.folder, 'venv'))
        self.python = os.path.join(self.folder, 'venv', 'bin', 'python')
        self.site = self.run_well(self.python, '-c', 'import site; print(site.getsitepackages()[0])').strip()

    def run_well(self, *command, **how):
        finished = subprocess.run(command, capture_output=True, text=True, check=False, **how)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        return finished.stdout

    def let_see(self, *modules):
        """The fresh environment's own packages come first."""
        with open(os.path.join(self.site, 'seen.pth'), 'w', encoding='utf-8') as file:
            for module in modules:
                print(os.path.dirname(os.path.dirname(module.__file__)), file=file)

    def three_lines_train(self):
        run = os.path.join(self.folder, 'run')
        os.mkdir(run, 0o700)
        environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'ELIXIRD')}
        output = self.run_well(self.python, '-c', PROGRAM, cwd=self.folder,
                               env={**environment, 'ELIXIR_RUNTIME_DIR': run})
        loaded, file = output.splitlines()
        self.assertEqual(loaded.count('libtorch_cpu.so'), 1)
        self.assertTrue(file.startswith(self.site), file)
        self.run_well(os.path.join(self.site, 'elixir', 'bin', 'elixirctl'), '--version')
        for name in ('_C.pyi', 'py.typed', 'generate.py', 'tokenize.py'):
            self.assertTrue(os.path.isfile(os.path.join(self.site, 'elixir', name)), name)


class Wheel(Environment):
    def test_three_lines_in_a_fresh_environment(self):
        import torch
        packs = os.path.join(python_case.HERE, '..', '..', 'scripts', 'pack_wheel.py')
        wheel = self.run_well(sys.executable, packs, '--build', python_case.BUILD, '--out', self.folder).strip()
        self.assertLess(os.path.getsize(wheel), 20e6)
        self.let_see(torch)
        self.run_well(self.python, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index', wheel)
        self.three_lines_train()


class FromSources(Environment):
    """Builds everything: nightly."""

    def test_pip_install_of_the_sources(self):
        import scikit_build_core
        import torch
        self.let_see(torch, scikit_build_core)
        self.run_well(self.python, '-m', 'pip', 'install', '--no-deps', '--no-index', '--no-build-isolation', '.',
                      cwd=os.path.join(python_case.HERE, '..', '..'))
        self.three_lines_train()


if __name__ == '__main__':
    unittest.main()
