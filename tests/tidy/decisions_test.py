"""docs/design/decisions.md: every decision stands under a room that exists, has a bold title of its own, and says the
rest in at most three sentences."""

import os
import re
import subprocess
import sys
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import language  # noqa: E402  (where it is, is known only now)

PAGE = os.path.join(REPOSITORY, 'docs', 'design', 'decisions.md')
OTHER_HEADINGS = {'tests and CI'}
SENTENCES_MAX = 3
ENTRY = re.compile(r'\* \*\*(.+?)\*\*(.*)', re.S)


def rooms():
    """Folders of the repository: base, client/train and so on."""
    listed = subprocess.run(['git', 'ls-files'], cwd=REPOSITORY, check=True, text=True, capture_output=True).stdout
    folders = {os.path.dirname(path) for path in listed.splitlines()}
    return {'/'.join(folder.split('/')[:depth]) for folder in folders for depth in (1, 2)} - {''}


def entries(page):
    """(heading of the second level, entry) of every list item; the heading is '' before the first one."""
    found, heading = [], ''
    for line in page.splitlines():
        if line.startswith('## '):
            heading = line[3:].strip()
        elif line.startswith('* '):
            found.append((heading, line))
        elif line.startswith('  ') and found:
            found[-1] = (found[-1][0], found[-1][1] + ' ' + line.strip())
    return found


def count_sentences(text):
    """Names such as elixird begin a sentence in lower case, and code may begin one, too."""
    text = re.sub(r'`[^`]*`', 'Code', text)
    return len(language.sentences(re.sub(r'(?<=[.!?]\s)[a-z]', lambda letter: letter.group().upper(), text)))


def faults(page, known_rooms):
    found, titles = [], set()
    for heading, entry in entries(page):
        match = ENTRY.match(entry)
        if match is None:
            found.append(f'no bold title: {entry[:60]}')
            continue
        title = match.group(1).strip(' .')
        if heading not in OTHER_HEADINGS and not set(heading.split(' and ')) <= known_rooms:
            found.append(f'"{title}" stands under "{heading}", which is no room')
        if title.lower() in titles:
            found.append(f'"{title}" is the title of two decisions')
        titles.add(title.lower())
        if count_sentences(match.group(2)) > SENTENCES_MAX:
            found.append(f'"{title}" has more than {SENTENCES_MAX} sentences')
    return found


class Decisions(unittest.TestCase):
    def test_each_has_a_room_a_title_and_three_sentences_at_most(self):
        with open(PAGE, encoding='utf-8') as file:
            page = file.read()
        self.assertGreater(len(entries(page)), 100)
        self.assertEqual(faults(page, rooms()), [])


class PlantedPages(unittest.TestCase):
    ROOMS = {'base', 'client/train', 'launcher', 'ctl'}

    def test_a_page_as_it_should_be_has_no_fault(self):
        page = ('# Decisions\n\nAn introduction.\n\n'
                '## base\n\n* **Short.** It is so. It was\n  slow. Others were not.\n'
                '## launcher and ctl\n\n### A topic\n\n* **Long** (`ctl/main.cpp`). It takes 0.5 s, e.g. here.\n'
                '## tests and CI\n\n* **Both.**\n')
        self.assertEqual(len(entries(page)), 3)
        self.assertEqual(faults(page, self.ROOMS), [])

    def test_each_fault_is_found(self):
        for page, fault in (
                ('* **Title.** Text of it.\n', 'no room'),
                ('## attic\n\n* **Title.** Text of it.\n', 'no room'),
                ('## base and attic\n\n* **Title.** Text of it.\n', 'no room'),
                ('## base\n\n* Title. Text of it.\n', 'no bold title'),
                ('## base\n\n* **Title.** Text.\n## ctl\n\n* **title** (`x`). Text of it.\n', 'two decisions'),
                ('## base\n\n* **Title.** It is one. It is two. It is three. It is four.\n', 'more than 3'),
                ('## base\n\n* **Title.** It is 1. elixird\n  is 2. `Three` is a name. torch is 4.\n', 'more than 3')):
            with self.subTest(page=page):
                found = faults(page, self.ROOMS)
                self.assertEqual(len(found), 1, found)
                self.assertIn(fault, found[0])


if __name__ == '__main__':
    unittest.main()
