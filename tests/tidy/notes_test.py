"""The notes of docs/design/elixir.md and the sources that cite them belong together: each note is cited in
some source, and each citation names a note."""

import os
import re
import subprocess
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
PAGE = 'docs/design/elixir.md'
HEADING = re.compile(r'^### Note: (.+)$', re.M)
# Tests and benchmarks are no sources: a note explains what they rely on.
OUTSIDE = ('tests', 'bench', 'examples')
CITATION = re.compile(r'docs/design/elixir\.md, "([^"]*)"')
NEXT_LINE = re.compile(r'\s*\n\s*//+\s*')
FEWEST_WORDS, MOST_WORDS = 60, 200


def read(path):
    with open(os.path.join(REPOSITORY, path), encoding='utf-8') as file:
        return file.read()


def notes(page):
    """name of a note -> its words; a note ends at the next heading."""
    found = {}
    for section in re.split(r'^(?=#{1,3} )', page, flags=re.M):
        heading = HEADING.match(section)
        if heading:
            found[heading[1]] = len(section[heading.end():].split())
    return found


def citations(sources):
    """(source, name of a note), also where a citation goes over two lines of a comment."""
    return [(path, name) for path, text in sources.items()
            for name in CITATION.findall(NEXT_LINE.sub(' ', text))]


def citing_sources():
    """Those that have the page's name; planted ones may be added."""
    listed = subprocess.run(['git', 'grep', '-l', '--fixed-strings', PAGE, '--', '*.h', '*.cpp', '*.cu'],
                            cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split()
    return {path: read(path) for path in listed if path.split('/')[0] not in OUTSIDE}


class Notes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = read(PAGE)
        cls.citing = citing_sources()

    def setUp(self):
        self.notes = notes(self.page)
        self.sources = dict(self.citing)
        self.assertGreater(len(self.notes), 10)
        self.assertGreater(len(self.sources), 10)

    def test_each_name_is_one_note(self):
        names = HEADING.findall(self.page)
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_each_note_is_cited(self):
        cited = {name for _, name in citations(self.sources)}
        self.assertEqual(sorted(set(self.notes) - cited), [], f'no source cites these notes of {PAGE}')

    def test_each_citation_names_a_note(self):
        unknown = [(path, name) for path, name in citations(self.sources) if name not in self.notes]
        self.assertEqual(unknown, [], f'{PAGE} has no such note')

    def test_notes_are_short(self):
        for name, count in self.notes.items():
            self.assertTrue(FEWEST_WORDS <= count <= MOST_WORDS, f'{name}: {count} words')

    def test_an_unknown_citation_is_found(self):
        self.sources['planted.h'] = f'// Note: {PAGE}, "a note that\n// nobody wrote".\n'
        with self.assertRaisesRegex(AssertionError, 'a note that nobody wrote'):
            self.test_each_citation_names_a_note()

    def test_a_note_that_nobody_cites_is_found(self):
        self.notes['planted'] = 100
        with self.assertRaisesRegex(AssertionError, 'planted'):
            self.test_each_note_is_cited()

    def test_a_long_note_is_found(self):
        self.notes = notes('### Note: long\n\n' + 'word ' * 300 + '\n\n## Next\n\nmore\n')
        self.assertEqual(self.notes, {'long': 300})
        with self.assertRaisesRegex(AssertionError, 'long: 300 words'):
            self.test_notes_are_short()


if __name__ == '__main__':
    unittest.main()
