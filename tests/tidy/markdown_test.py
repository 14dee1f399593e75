"""Pages are at most 120 columns wide: scripts/markdown_width.py."""

import os
import sys
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import markdown_width  # noqa: E402  (where it is, is known only now)

LONG = ' '.join(['word'] * 30)


class Pages(unittest.TestCase):
    def test_none_is_wider(self):
        self.assertGreater(len(markdown_width.pages()), 10)
        for path in markdown_width.pages():
            with open(path, encoding='utf-8') as file:
                self.assertEqual(markdown_width.long_lines(file.read()), [], path)


class MadeUpPages(unittest.TestCase):
    def test_a_long_line_is_found_and_wrapped_in_its_paragraph(self):
        page = f'# Title\n\nshort\n{LONG}\nend\n\nnext\n'
        self.assertEqual(markdown_width.long_lines(page), [4])
        fixed = markdown_width.fixed(page)
        self.assertEqual(markdown_width.long_lines(fixed), [])
        self.assertEqual(fixed.split(), page.split())
        self.assertTrue(fixed.startswith('# Title\n\nshort word'))
        self.assertTrue(fixed.endswith('end\n\nnext\n'))

    def test_items_keep_their_indentation(self):
        fixed = markdown_width.fixed(f'* one\n* {LONG}\n  and more\n* three')
        self.assertEqual(fixed.count('* '), 3)
        self.assertIn('\n  word', fixed)

    def test_tables_code_and_what_cannot_be_broken_stay(self):
        for page in (f'| {LONG} |\n', f'```sh\n{LONG}\n```\n', 'x' * 200):
            self.assertEqual(markdown_width.long_lines(page), [])
            self.assertEqual(markdown_width.fixed(page), page)


if __name__ == '__main__':
    unittest.main()
