"""README's table of models, GPUs and host memory is the planner's, and a changed number is found."""

import contextlib
import io
import math
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import fit_table  # noqa: E402  (where it is, is known only now)
import page_table  # noqa: E402

BIN = os.environ.get('ELIXIR_BIN_DIR', os.path.join(REPOSITORY, 'build', 'release', 'bin'))
README = os.path.join(REPOSITORY, 'README.md')


def readme():
    with open(README, encoding='utf-8') as file:
        return file.read()


class FitTable(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.table = fit_table.fit_table(BIN)  # once: it takes seconds

    def run_main(self, *arguments):
        """(exit code, what it said)."""
        said = io.StringIO()
        with mock.patch.object(fit_table, 'fit_table', return_value=self.table), contextlib.redirect_stderr(said):
            code = fit_table.main([*arguments, '--bin', BIN])
        return code, said.getvalue()

    def check_text(self, text, *arguments):
        """The same on a page with this text; also the text afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'page.md')
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
            code, said = self.run_main(*arguments, '--page', path)
            with open(path, encoding='utf-8') as file:
                return code, said, file.read()

    def test_the_readme_has_the_planners_table(self):
        self.assertEqual(self.run_main('--check'), (0, ''))

    def test_it_has_every_model_and_gpu(self):
        rows = self.table.splitlines()[2:]
        self.assertEqual(len(rows), len(fit_table.MODELS))
        cell = r'(?:fits the GPU|no|[\d,]+ GiB)(?:; [\d,]+ tokens/s)?'
        for row in rows:
            self.assertRegex(row, rf'^\| [^|]+ \| [\d.]+ [BM](?: \| {cell}){{{len(fit_table.GPUS)}}} \|$')
        self.assertIn('fits the GPU', self.table)
        self.assertRegex(self.table, r'\d GiB; [\d,]+ tokens/s \|')

    def test_a_changed_number_is_found_and_written_anew(self):
        page = readme()
        number = re.search(r'(\d) GiB;', page.partition(fit_table.BEGIN)[2], re.M)
        begin = page.index(fit_table.BEGIN) + len(fit_table.BEGIN) + number.start(1)
        planted = f'{page[:begin]}{(int(page[begin]) + 1) % 10}{page[begin + 1:]}'
        code, said, after = self.check_text(planted, '--check')
        self.assertEqual((code, after), (1, planted))
        self.assertIn('old table', said)
        self.assertEqual(self.check_text(planted, '--write'), (0, '', page))

    def test_a_page_without_marks_is_an_error(self):
        for text in ('', 'no table\n', fit_table.BEGIN, f'{page_table.END}\n{fit_table.BEGIN}'):
            with self.assertRaises(SystemExit, msg=text):
                self.check_text(text, '--check')

    def test_more_memory_never_needs_more(self):
        """The table's own sense: a larger GPU needs no more host memory."""
        for row in self.table.splitlines()[2:]:
            words = {'fits the GPU': 0, 'no': math.inf}
            needs = [cell.split(';')[0] for cell in row.strip('| ').split(' | ')[2:]]
            needs = [words[need] if need in words else int(need.split()[0].replace(',', '')) for need in needs]
            self.assertEqual(needs, sorted(needs, reverse=True), row)


if __name__ == '__main__':
    unittest.main()
