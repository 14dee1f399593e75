"""The table of docs/hardware.md is what `elixirctl estimate` says."""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
from harness import REPOSITORY, program  # noqa: E402

ROW = re.compile(r'^\| ([a-z][\w.-]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$', re.M)
GIB = 1 << 30


def table(page):
    """(model, parameters, a GPU, the host) of each row."""
    rows = ROW.findall(page.split('<!-- table: host memory -->', 1)[1].split('\n\n', 1)[0])
    return [row for row in rows if row[0] != 'model']


def cells_of(estimate):
    elixir = estimate['elixir']
    return (f"{estimate['params'] / 1e9:.2f} G", f"{elixir['gpu_bytes'] / GIB:.2f} GiB",
            f"{elixir['host_bytes_per_node'] / GIB:.1f} GiB")


class Hardware(unittest.TestCase):
    def test_the_table_is_what_estimate_says(self):
        with open(os.path.join(REPOSITORY, 'docs', 'hardware.md'), encoding='utf-8') as file:
            rows = table(file.read())
        self.assertGreater(len(rows), 4)
        for model, *cells in rows:
            config = os.path.join(REPOSITORY, 'examples', 'configs', f'{model}.json')
            source = ['--config', config] if os.path.exists(config) else ['--model', model]
            with self.subTest(model=model):
                said = subprocess.run([program('elixirctl'), 'estimate', *source, '--dtype', 'bf16', '--json'],
                                      check=True, capture_output=True, text=True).stdout
                self.assertEqual(tuple(cells), cells_of(json.loads(said)))


class MadeUpTables(unittest.TestCase):
    def test_rows_are_read(self):
        page = ('| a | b | c | d |\n\n<!-- table: host memory -->\n| model | n | m | o |\n|---|---|---|---|\n'
                '| x-1 | 1.00 G | 0.10 GiB | 14.0 GiB |\n\n| y | 1 | 2 | 3 |\n')
        self.assertEqual([row[0] for row in table(page)], ['x-1'])


if __name__ == '__main__':
    unittest.main()
