"""Plans, status, and what an interpreter with another torch is told."""

import os
import re
import shutil
import subprocess
import sys
import unittest

import python_case
from python_case import PythonCase, masters_hash, net, net_loss, small_model, trained

python_case.need('transformers', 'accelerate')

import torch  # noqa: E402
import elixir  # noqa: E402

REPOSITORY = os.path.realpath(os.path.join(python_case.HERE, '..', '..'))


class Plans(PythonCase):
    def batch(self):
        tokens = torch.arange(4 * 32).view(4, 32) % 500
        return {'input_ids': tokens, 'labels': tokens}

    def test_the_first_forward_pass_is_planned_for(self):
        theirs = small_model('llama')
        expected = theirs(**self.batch()).loss.item()
        for init in (False, True):
            torch.manual_seed(0)
            if init:
                with elixir.init():
                    model = small_model('llama')
            else:
                model = small_model('llama')
            optimizer = elixir.AdamW(model, gpu_memory='4MiB')
            loss = model(**self.batch()).loss
            self.assertIsNotNone(optimizer.plan)
            if not init:
                self.assertAlmostEqual(loss.item(), expected, places=5)
            loss.backward()
            optimizer.step()
            self.assertEqual(len(str(optimizer.plan).splitlines()), 6)
            self.assertRegex(str(optimizer.plan), r'step +[0-9.e-]+ ms, .* takes longest')
            summary = optimizer._native.plan_summary()
            self.assertEqual(summary['rcache_blocks'], optimizer.plan.values['rcache_blocks'])

    def test_a_profile_asks_for_no_values(self):
        """transformers looks at masks and positions before attention, as in every step of Trainer (use_cache=False)."""
        for kind in ('llama', 'gpt2', 'gemma3'):
            for more in ({}, {'attention_mask': torch.ones(4, 32, dtype=torch.int64)}):
                model = small_model(kind)
                model.config.use_cache = False
                self.assertIsNotNone(elixir.plan(model, {**self.batch(), **more}, gpu_memory='8MiB'), (kind, more))

    def test_a_model_that_cannot_be_profiled_trains_without_a_plan(self):
        model = net()
        model.register_forward_hook(lambda module, args, output: output * float(output.sum() != 12345.0) *
                                    (output.flatten()[0].item() != 12345.0))
        optimizer = elixir.AdamW(model, gpu_memory='4MiB')
        with self.assertLogs('elixir', 'WARNING') as said:
            net_loss(model, 0).backward()
        self.assertIn('no plan: the model does not run without values', said.output[0])
        self.assertIsNone(optimizer.plan)
        optimizer.step()
        with self.assertRaises(RuntimeError):  # here a plan is what was asked for
            elixir.plan(model, {'input': torch.zeros(6, 16)}, gpu_memory='4MiB')

    def test_trainer_has_a_plan_and_resumes_with_one(self):
        hashes = []
        for resume in (None, os.path.join(self.folder, 'checkpoint-10')):
            model = small_model('llama')
            optimizer = elixir.AdamW(model, gpu_memory='8MiB')
            trained(model, optimizer, self.folder, resume=resume, save_strategy='steps', save_steps=10)
            self.assertIsNotNone(optimizer.plan)
            hashes.append(masters_hash(optimizer))
        self.assertEqual(*hashes)

    def test_a_plan_goes_through_a_file(self):
        model = small_model('llama')
        plan = elixir.plan(model, self.batch(), gpu_memory='4MiB')
        path = os.path.join(self.folder, 'plan.json')
        plan.save(path)
        self.assertFalse(model.lm_head.weight.is_meta)  # as it was
        optimizer = elixir.AdamW(model, plan=path)
        optimizer.start()
        for name in ('chunk_numel', 'rcache_blocks', 'placement', 'update', 'exchange'):
            self.assertEqual(optimizer.plan.values[name], plan.values[name], name)
        with self.refused('another model'):
            other = net()
            elixir.AdamW(other, plan=path).start()

    def test_nothing_is_planned_where_nothing_is_scarce(self):
        model = small_model('llama')
        optimizer = elixir.AdamW(model)
        model(**self.batch())
        self.assertIsNone(optimizer.plan)
        self.assertIsNone(elixir.plan(small_model('gpt2'), self.batch()))
        with self.refused('cannot fit', 'smaller batch'):
            elixir.plan(small_model('gpt2'), self.batch(), gpu_memory='64KiB')

    def test_the_plan_is_drawn(self):
        try:
            import matplotlib
        except ImportError as missing:
            self.skipTest(str(missing))
        matplotlib.use('agg')
        plan = elixir.plan(small_model('llama'), self.batch(), gpu_memory='4MiB')
        axes = plan.plot()
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        for part in ('rCache', 'activations', 'memory of the device'):
            self.assertTrue(any(label.startswith(part) for label in labels), labels)
        curve = plan.values['activation_curve']
        self.assertGreater(len(set(curve)), 10)  # it grows and shrinks over the step
        self.assertEqual(max(curve), plan.values['bytes']['gpu']['activations'])
        top = max(vertex[1] for area in axes.collections for path in area.get_paths() for vertex in path.vertices)
        self.assertAlmostEqual(top, plan.values['bytes']['gpu']['total'] / 2**30, delta=1e-6)
        path = os.path.join(self.folder, 'plan.json')
        plan.save(path)
        model = small_model('llama')
        read = elixir.AdamW(model, plan=path)
        read.start()
        self.assertEqual(read.plan.values['activation_curve'], curve)

    def test_status(self):
        model = net()
        optimizer = elixir.AdamW(model)
        net_loss(model, 0).backward()
        optimizer.step()
        optimizer.synchronize()
        found = elixir.status()
        self.assertIn('jobs', found[0])

    def test_the_status_of_several_elixirds(self):
        from unittest import mock
        from elixir import _status
        told = subprocess.CompletedProcess([], 0, '{"jobs": []}\n{"jobs": [1]}\n', '')
        with mock.patch.object(_status.subprocess, 'run', return_value=told):
            self.assertEqual(_status.ask(), [{'jobs': []}, {'jobs': [1]}])

    def told_of(self, place, version):
        """The last line that an interpreter prints which imports elixir from a folder, beside this torch."""
        torch_there = "types.ModuleType('torch')" if version else 'None'
        program = (f'import sys, types; sys.path.insert(0, {place!r})\nsys.modules["torch"] = torch = {torch_there}\n'
                   f'if torch: torch.__version__ = {version!r}\nimport elixir')
        finished = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
        self.assertEqual(finished.returncode, 1)
        return finished.stderr.strip().splitlines()[-1]

    def test_a_torch_without_a_compiled_part(self):
        place = os.path.join(self.folder, 'site')  # as an installed package, without links to the sources
        shutil.copytree(os.path.dirname(elixir.__file__), os.path.join(place, 'elixir'),
                        ignore=shutil.ignore_patterns('bin', '__pycache__'))
        lib = os.path.join(place, 'elixir', 'lib')
        own = os.listdir(lib)[0]
        os.rename(os.path.join(lib, own), os.path.join(lib, 'torch299'))
        sources = os.path.join(REPOSITORY, 'python')  # as who names the wrong folder in PYTHONPATH
        python = f'Python {sys.version_info.major}.{sys.version_info.minor}'
        there = f'need torch 2.99 with {python} (this elixir was built for it): install that torch, or'
        build = 'build elixir for yours: pip install scikit-build-core && pip install --no-build-isolation'
        other = "pip install 'torch>=2.11,<2.16'"
        for version, folder, says in (
                ('2.13.0', place, f'{there} {build} FOLDER, where FOLDER has the sources of elixir'),
                ('2.8.1', place, f'{there} install one that elixir can be built for: {other}'),
                ('2.13.0', sources, f'need a build of elixir, and none is here: {build} {REPOSITORY}'),
                (None, sources, f'there is no torch here: {other}')):
            with self.subTest(version=version, folder=folder):
                have = f'have torch {version} and {python}, ' if version else ''
                self.assertEqual(self.told_of(folder, version), f'ImportError: import elixir: {have}{says}')

    def test_the_torches_are_those_of_the_build(self):
        with open(os.path.join(REPOSITORY, 'cmake', 'FindLibTorch.cmake'), encoding='utf-8') as file:
            found = re.findall(r'^set\(ELIXIR_(OLDEST|NEWEST)_TORCH 2\.(\d+)\)', file.read(), re.M)
        from elixir import _load
        self.assertEqual(found, [('OLDEST', str(_load.OLDEST)), ('NEWEST', str(_load.NEWEST))])


if __name__ == '__main__':
    unittest.main()
