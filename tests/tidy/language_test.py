"""Pages are easy to read: scripts/language.py counts long sentences, leaning openings, wide table cells and old
words. Each limit is also broken here by a page of its own, so that a limit that counts nothing is noticed."""

import contextlib
import io
import os
import sys
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import language  # noqa: E402  (where it is, is known only now)


def faults_of(text):
    return language.measure_markdown(text).faults()


def report(path):
    """A text that names a page, the limits it breaks and the sentences to change; empty if it breaks none."""
    measure = language.measure_markdown(path.read_text(encoding='utf-8'))
    if not measure.faults():
        return ''
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        language.show(measure)
    return '\n'.join([language.name_of(path), *(f'  {fault}' for fault in measure.faults()), shown.getvalue()])


class Pages(unittest.TestCase):
    def test_each_is_within_the_limits(self):
        paths = language.tracked('*.md')
        self.assertGreater(len(paths), 10)
        found = [report(path) for path in paths]
        self.assertEqual([text for text in found if text], [], 'scripts/language.py FILE names the sentences')


class Comments(unittest.TestCase):
    def test_of_each_header_are_within_the_limits(self):
        paths = language.tracked('*.h')
        self.assertGreater(len(paths), 300)
        found = {language.name_of(path): language.measure_file(path).faults() for path in paths}
        self.assertEqual({name: faults for name, faults in found.items() if faults}, {},
                         'scripts/language.py FILE names the sentences')

    def test_a_header_in_the_old_style_is_found(self):
        lines = '// Of those that are there the first is taken, and what it says of it is told.\n' * 3
        self.assertEqual(kinds_of(language.measure_header(lines).faults()), {'leaning', 'old'})
        beside = 'int count;  // which of them is refused\n\n' * 3
        self.assertEqual(kinds_of(language.measure_header(beside).faults()), {'leaning', 'old'})
        self.assertEqual(language.measure_header('const char* url = "http://what/of";  // NOLINT\n').sentences, [])


class Messages(unittest.TestCase):
    def test_of_the_sources_have_no_old_words(self):
        paths = language.message_sources()
        self.assertGreater(len(paths), 500)
        found = {language.name_of(path): language.measure_messages(path.read_text(encoding='utf-8')).old
                 for path in paths}
        self.assertEqual({name: old for name, old in found.items() if old}, {})

    def test_a_message_in_the_old_style_is_found(self):
        for message in ('the model lacks it', '{} is no folder{}', 'user {}, as whom it runs', 'a job that "\n    "is told'):
            measure = language.measure_messages(f'  fail(\n    "{message}", path);\n')
            self.assertEqual(kinds_of(measure.faults()), {'old'}, message)
        for message in ('there is no GPU in it', 'it is no longer there', 'lacks', 'open the file'):
            self.assertEqual(language.measure_messages(f'fail("{message}");  // refused\n').faults(), [], message)


class HelpTexts(unittest.TestCase):
    def test_of_each_program_are_within_the_limits(self):
        texts = language.help_texts()
        self.assertGreater(len(texts), 15)
        for program, text in texts:
            with self.subTest(program=program):
                measure = language.measure_help(text)
                self.assertGreater(len(measure.sentences), 2)
                self.assertEqual(measure.faults(), [], 'scripts/language.py --help-texts names the sentences')

    def test_a_help_text_in_the_old_style_is_found(self):
        text = 'Usage: x [OPTIONS]\n\nOptions:\n' + '  --flag N                What is\n' \
               '                          refused of them\n' * 3
        measure = language.measure_help(text)
        self.assertEqual(len(measure.sentences), 3)
        self.assertEqual(kinds_of(measure.faults()), {'leaning', 'old'})


GOOD = 'You start the run with one command. The log names the folder. Training continues. '
# Sixteen words, and none of them is old.
SENTENCE = 'The trainer sends each gradient to the daemon, and the daemon updates the weights in memory. '
VERY_LONG = 'The trainer ' + 'sends a gradient and ' * 8 + 'ends. '  # 35 words


def kinds(text):
    """Which limits the page breaks."""
    return kinds_of(faults_of(text))


def kinds_of(faults):
    """By a word of each fault."""
    marks = {'mean': 'words a sentence', 'long': 'have more than 30 words', 'leaning': 'begin with',
             'cells': 'table cells', 'old': 'old English'}
    found = {name for name, mark in marks.items() if any(mark in fault for fault in faults)}
    assert len(found) == len(faults), faults
    return found


class MadeUpPages(unittest.TestCase):
    def test_a_plain_page_passes(self):
        page = f'# A title\n\n{GOOD * 9}\n\n* {GOOD}\n* {GOOD}\n\n| name | meaning |\n|---|---|\n| a | {SENTENCE[:60]} |\n'
        self.assertEqual(kinds(page), set())
        self.assertGreater(len(language.measure_markdown(page).sentences), 20)

    def test_leaning_openings_alone(self):
        for opening in ('What', 'Where', 'Who', 'Whose', 'Of', 'That', 'Which', 'The same'):
            leaning = f'{opening} it has read is kept in memory. '
            self.assertEqual(kinds(GOOD * 9 + leaning * 2), {'leaning'}, opening)
            self.assertEqual(kinds(GOOD * 9 + leaning), set(), opening)  # 3 % of a short page is one sentence

    def test_long_sentences_alone(self):
        self.assertEqual(kinds(GOOD * 9 + VERY_LONG * 3), {'long'})
        self.assertEqual(kinds(GOOD * 9 + VERY_LONG), set())

    def test_the_mean_alone(self):
        longer = SENTENCE.replace('memory. ', 'memory of the node that it runs on. ')
        self.assertEqual(kinds(longer * 20), {'mean'})
        self.assertEqual(kinds(SENTENCE * 20), set())

    def test_wide_cells_alone(self):
        row = '\n\n| name | meaning |\n|---|---|\n| a | {} |\n'
        self.assertEqual(kinds(GOOD * 9 + row.format('word ' * 16)), {'cells'})
        self.assertEqual(kinds(GOOD * 9 + row.format('word ' * 15)), set())

    def test_old_words_alone(self):
        for old in ('A run is mended by this command.', 'A job that does not fit is refused.',
                    'All pages but for one are short.', 'The others wait meanwhile.', 'The page lacks a title.',
                    'The rank is told of it.', 'The run goes on after that.', 'The index is stored therein.',
                    'The run shall end soon.', 'It reads the file so as to save time.'):
            self.assertEqual(kinds(f'{GOOD * 9}{old}'), {'old'}, old)
            self.assertEqual(kinds(f'{GOOD * 9}\n\n| a |\n|---|\n| {old} |\n'), {'old'}, old)

    def test_the_old_style_breaks_all(self):
        page = ('Of a run that was begun anew what it has kept is gone on with where the folder of it, which it was '
                'told of before it began, and in which what it needs has been laid, lacks none of these. ')
        self.assertEqual(kinds(page * 3 + '\n\n| a |\n|---|\n| ' + 'word ' * 16 + '|\n'),
                         {'mean', 'long', 'leaning', 'cells', 'old'})

    def test_code_is_not_counted_and_what_follows_is(self):
        bad = 'Which of them is refused is told. ' * 2
        for fence in ('```', '````', '~~~'):
            block = f'{GOOD * 9}\n\n{fence}text\n{bad}\n{VERY_LONG * 4}\n{fence}\n'
            self.assertEqual(kinds(block), set(), fence)
            self.assertEqual(kinds(f'{block}{bad}'), {'leaning', 'old'}, fence)
        self.assertEqual(kinds(f'{GOOD * 9} See `{bad}` and <!-- {bad} -->.'), set())

    def test_items_and_quoted_lines_are_counted(self):
        for mark in ('* ', '- ', '1. ', '> '):
            page = f'{GOOD * 9}\n\n{mark}Which it is. Which it was then.\n'
            self.assertEqual(kinds(page), {'leaning'}, mark)

    def test_the_report_names_the_page_and_its_sentences(self):
        class Page:
            def read_text(self, encoding):
                return GOOD * 9 + 'A job that does not fit is refused.'

            def is_relative_to(self, _):
                return False

            def __str__(self):
                return 'planted.md'
        text = report(Page())
        for expected in ('planted.md', 'refused', 'A job that does not fit is refused.'):
            self.assertIn(expected, text)


if __name__ == '__main__':
    unittest.main()
