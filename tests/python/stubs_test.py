"""The types of the package: those of the compiled part are its own, and mypy judges a user's program by the others."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tempfile
import unittest

import python_case
from python_case import BUILD

python_case.need('mypy')

import torch  # noqa: E402
import elixir  # noqa: E402
import elixir._C as compiled  # noqa: E402

PYTHON = os.path.join(BUILD, 'python')
STUB = os.path.join(PYTHON, 'elixir', '_C.pyi')
# Of classes that pybind11 makes.
NOT_COMPARED = r'elixir\._C\.(Adam|AdamW|Gathered|Init|Plan|Saving)(\.__init__)?'

RIGHT = '''
from typing import Any

import torch
import elixir
import elixir.hf
from elixir.generate import generate
from elixir.tokenize import tokenize

version: str = elixir.__version__
with elixir.init():
    model = torch.nn.Linear(4, 4)
weight: torch.Tensor = elixir.materialise(model.weight)
optimizer = elixir.AdamW(model, lr=1e-3, betas=(0.9, 0.95), dtype="bf16", device=torch.device("cpu"), accumulate=2,
                         max_grad_norm=1.0, plan=None, gpu_memory="24GiB", rcache_blocks=8, exchange="host")
other: torch.optim.Optimizer = elixir.Adam(model.named_parameters(), 1e-3, dtype=torch.bfloat16)
groups = elixir.AdamW([{"params": [model.weight], "lr": 1e-4}, {"params": [model.bias]}], model=model)
optimizer.start()
optimizer.start(((), {"input_ids": weight}))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
kept: torch.Tensor = elixir.checkpoint(model, weight, use_reentrant=False)
loss = elixir.linear_cross_entropy(weight, weight, torch.zeros(4, dtype=torch.long), softcap=30.0)
loss.backward()  # type: ignore[no-untyped-call]
optimizer.step()
optimizer.step(lambda: 1.0)
optimizer.zero_grad()
optimizer.add_param_group({"params": [model.bias], "lr": 1e-5})
step: int = optimizer.outcome()["step"]
hits: int = optimizer.stats()["hits"]
optimizer.synchronize()
started: bool = optimizer.started
kind: torch.dtype = optimizer.dtype
place: torch.device = optimizer.device
passes: int = optimizer.accumulate
limit: float | None = optimizer.max_grad_norm
with elixir.gathered(model.weight), elixir.gathered(model.parameters()):
    weight.numpy()
value: torch.Tensor = optimizer.value(model.weight)
gradient: torch.Tensor | None = optimizer.gradient(model.weight)
optimizer.set_parameters({"weight": value})
states: dict[str, dict[str, Any]] = optimizer.full_state_dict()
optimizer.load_state_dict(optimizer.state_dict())
if optimizer.plan is not None:
    print(optimizer.plan, optimizer.plan.values["n_chunks"])
chosen: elixir.Plan | None = elixir.plan(model, {"input": weight}, gpu_memory=2**30, dtype="bf16")
if chosen is not None:
    chosen.save("plan.json")
    chosen.plot()
report: dict[str, Any] = elixir.save(optimizer, "run/step-1", files={"config.json": "{}", "x": b""}, program="text")
saving = elixir.save(optimizer, "run/step-2", wait=False, states=False, frozen=False)
while not saving.done():
    share: float = saving.progress()
report = saving.wait()
report = elixir.load(optimizer, "run/step-1", states=False)
report = elixir.save_model(optimizer, "run/model")
last: str | None = elixir.last_checkpoint("run")
jobs: list[dict[str, Any]] = elixir.status(live=False, every_s=2)
optimizer.release()
try:
    llama = elixir.hf.from_pretrained(torch.nn.Module, "folder", attn_implementation="eager")
    llama.generate()
except elixir.Error as failure:
    code: str = failure.code
    raise SystemExit(failure.exit_code)
text: str = generate("folder", "prompt", max_tokens=3, temperature=0, on_text=print, rcache_blocks=4)
tokens: int = tokenize("folder", ["a.txt"], "a.tokens", document_end=True)["tokens"]
'''

WRONG = {  # a line, and the name of mypy's objection
    'elixir.AdamW(model, lr="fast")': 'arg-type',
    'elixir.AdamW(model, rcache_block=8)': 'call-arg',
    'elixir.AdamW(model, rcache_blocks="8")': 'arg-type',
    'elixir.AdamW(model, exchange="both")': 'arg-type',
    'elixir.AdamW(model, activations=2)': 'arg-type',
    'elixir.Adam(model, betas=0.9)': 'arg-type',
    'elixir.AdamW(model).step(1.0)': 'arg-type',
    'elixir.AdamW(model).outcome("last")': 'arg-type',
    'elixir.AdamW(model).started = True': 'misc',
    'elixir.save(model, "folder")': 'call-overload',
    'elixir.save(elixir.AdamW(model), "folder").done()': 'attr-defined',
    'elixir.save(elixir.AdamW(model), "folder", wait=False)["step"]': 'index',
    'elixir.load(elixir.AdamW(model), 3)': 'arg-type',
    'elixir.save_model(elixir.AdamW(model), "folder", states=True)': 'call-arg',
    'elixir.plan(model, {}).save("plan.json")': 'union-attr',
    'elixir.plan(model, {}, batch_size=3)': 'call-arg',
    'elixir.gathered(model)': 'arg-type',
    'elixir.init().enter()': 'attr-defined',
    'elixir.materialise("weight")': 'arg-type',
    'elixir.linear_cross_entropy(model.weight, model.weight, [1])': 'arg-type',
    'elixir.status("live")': 'arg-type',
    'elixir.hf.from_pretrained(torch.nn.Linear, 3)': 'arg-type',
    'elixir.Error.exit_code.upper()': 'attr-defined',
    'generate("folder", "prompt", max_token=3)': 'call-arg',
    'tokenize("folder", "a.txt")': 'call-arg',
}
HEAD = ('import torch\nimport elixir\nfrom elixir.generate import generate\nfrom elixir.tokenize import tokenize\n'
        'model = torch.nn.Linear(4, 4)\n')


def parameters_of(definition, is_positional=lambda name: False):
    """(name, has a default) of each parameter but self; positional ones have no name that counts."""
    given = definition.args
    names = [argument.arg for argument in given.posonlyargs + given.args]
    first = len(names) - len(given.defaults)
    only = {argument.arg for argument in given.posonlyargs} | {name for name in names if is_positional(name)}
    listed = [('positional' if name in only else name, i >= first) for i, name in enumerate(names) if name != 'self']
    return listed + ([('*', False)] if given.vararg else [])


def by_pybind(function):
    """The same of the signature that begins a docstring; parameters without names are arg0, arg1, ..."""
    definition = ast.parse(f'def {function.__doc__.splitlines()[0]}: ...').body[0]
    return parameters_of(definition, re.compile(r'arg\d+').fullmatch)


class Stubs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix='elixir-stubs-test-')
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    def mypy(self, module, path, *words):
        self.write('mypy.ini', '[mypy]\nstrict = True\nfollow_imports = silent\n')
        return subprocess.run(
            [sys.executable, '-B', '-m', module, *words], capture_output=True, text=True, check=False, cwd=self.folder,
            env={**os.environ, 'MYPYPATH': path, 'PYTHONPATH': PYTHON})

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)

    def test_the_stub_has_the_names_of_the_compiled_part(self):
        self.write('allowed', NOT_COMPARED + '\n')
        with open(STUB, encoding='utf-8') as file:
            self.write('typed/elixir/_C.pyi', file.read())
        self.write('typed/elixir/__init__.pyi', '')
        self.write('typed/torch/__init__.pyi', 'class Tensor: ...\nclass device: ...\n')  # torch's own take 12 s
        done = self.mypy('mypy.stubtest', os.path.join(self.folder, 'typed'), 'elixir._C', '--allowlist', 'allowed',
                         '--ignore-unused-allowlist')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_stub_has_the_parameters_of_the_compiled_part(self):
        with open(STUB, encoding='utf-8') as file:
            stub = ast.parse(file.read())
        functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
        classes = {node.name: node.body for node in stub.body if isinstance(node, ast.ClassDef)}
        classes.update(AdamW=classes['_Optimizer'], Adam=classes.pop('_Optimizer'))
        del classes['Error']  # written in Python
        found = 0
        for owner, body in [(compiled, functions),
                            *((getattr(compiled, name), body) for name, body in classes.items())]:
            for node in body:
                with self.subTest(f'{owner.__name__}.{node.name}'):
                    self.assertEqual(parameters_of(node), by_pybind(inspect.getattr_static(owner, node.name)))
                    found += 1
        self.assertGreater(found, 50)

    def test_a_users_program(self):
        self.write('right.py', RIGHT)
        self.write('wrong.py', HEAD + '\n'.join(WRONG) + '\n')
        done = self.mypy('mypy', PYTHON, 'right.py', 'wrong.py')
        objections = {}
        for line in done.stdout.splitlines():
            match = re.fullmatch(r'(\w+\.py):(\d+): error: .*\[([\w-]+)\]', line)
            if match:
                objections.setdefault((match[1], int(match[2])), set()).add(match[3])
        self.assertEqual([key for key in objections if key[0] == 'right.py'], [], done.stdout)
        first = HEAD.count('\n') + 1
        for number, (line, name) in enumerate(WRONG.items(), start=first):
            with self.subTest(line):
                self.assertEqual(objections.get(('wrong.py', number)), {name}, done.stdout)

    def test_every_public_name_is_in_the_users_program(self):
        used = set(re.findall(r'elixir\.(\w+)', RIGHT))
        self.assertEqual(set(elixir.__all__) - used, set())
        methods = {name for name, value in vars(elixir.AdamW.__mro__[1]).items()
                   if not name.startswith('_') and (callable(value) or isinstance(value, property))}
        self.assertEqual(methods - set(re.findall(r'optimizer\.(\w+)', RIGHT)), set())


if __name__ == '__main__':
    unittest.main()
