"""Plans, status, and what an interpreter with another torch is told."""

import os
import subprocess
import sys
import unittest

import python_case
from python_case import PythonCase, net, net_loss, small_model

python_case.need('transformers')

import torch  # noqa: E402
import elixir  # noqa: E402

# A directory that stands for an installed package without a compiled part for this torch.
PROGRAM = 'import sys; sys.path.insert(0, {place!r})\nimport elixir'


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
        self.assertTrue(axes.get_legend().get_texts())

    def test_status(self):
        model = net()
        optimizer = elixir.AdamW(model)
        net_loss(model, 0).backward()
        optimizer.step()
        optimizer.synchronize()
        found = elixir.status()
        self.assertIn('jobs', str(found))

    def test_a_torch_without_a_compiled_part(self):
        import shutil
        place = os.path.join(self.folder, 'site')
        shutil.copytree(os.path.dirname(elixir.__file__), os.path.join(place, 'elixir'),
                        ignore=shutil.ignore_patterns('bin', '__pycache__'))
        lib = os.path.join(place, 'elixir', 'lib')
        own = os.listdir(lib)[0]
        os.rename(os.path.join(lib, own), os.path.join(lib, 'torch299'))
        finished = subprocess.run([sys.executable, '-c', PROGRAM.format(place=place)], capture_output=True, text=True,
                                  check=False)
        self.assertEqual(finished.returncode, 1)
        last = finished.stderr.strip().splitlines()[-1]
        self.assertRegex(last, r'ImportError: import elixir: have torch 2\.\d+\.\S+ and Python 3\.\d+, need torch 2\.99 .*'
                               'pip install --no-build-isolation')


if __name__ == '__main__':
    unittest.main()
