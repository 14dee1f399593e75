"""docs/troubleshooting.md quotes messages that the programs print. Each is a line "> `message`", in which … stands for
values and for words that are left out. Each must be found in one string of the C++ sources or of python/elixir."""

import ast
import os
import re
import subprocess
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
PAGE = 'docs/troubleshooting.md'
NOT_PRODUCT = ('tests', 'bench', 'examples')
LEFT_OUT = '…'
# Words that a quotation must have at least, so that it cannot be found everywhere.
LETTERS_MIN = 10

QUOTED = re.compile(r'^> (.*)$', re.M)
# Comments, raw strings, strings and letters, in the order in which they begin.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]*)\((?P<raw>.*?)\)(?P=mark)"|'
                   r'"(?P<text>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'', re.S)
DIGITS_APART = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")  # 1'000'000 holds no letters
ESCAPES = {'n': '\n', 't': '\t'}
FIELD = re.compile(r'\{\{|\}\}|\{[^{}]*\}')


def with_fields_left_out(text):
    return FIELD.sub(lambda found: found[0][0] if found[0] in ('{{', '}}') else LEFT_OUT, text)


def strings(source):
    """The strings of a C++ text. Neighbours are joined as the compiler joins them; a format's fields become …."""
    joined, end = [], None
    source = DIGITS_APART.sub('', source)
    for token in TOKEN.finditer(source):
        text = token['raw'] if token['raw'] is not None else token['text']
        if text is None:  # a comment, which parts no strings, or a letter
            if token[0].startswith('/') and end is not None and not source[end:token.start()].strip():
                end = token.end()
            continue
        if token['raw'] is None:
            text = re.sub(r'\\(.)', lambda found: ESCAPES.get(found[1], found[1]), text)
        if end is not None and not source[end:token.start()].strip():
            joined[-1] += text
        else:
            joined.append(text)
        end = token.end()
    return [with_fields_left_out(text) for text in joined]


def python_strings(source):
    """The strings of a Python text; neighbours are one, and a format's fields become …."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            found.append(''.join(part.value if isinstance(part, ast.Constant) else LEFT_OUT for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def quotations(page):
    """The lines that quote, without their mark."""
    return [line.strip() for line in QUOTED.findall(page)]


def fault_of(line, known):
    """Why a line's quotation is no message; '': it is one."""
    inner = re.fullmatch(r'`([^`]+)`', line)
    if not inner:
        return 'not one code span'
    pieces = [piece for piece in inner[1].split(LEFT_OUT) if piece]
    if sum(map(str.isalpha, inner[1])) < LETTERS_MIN:
        return 'too few letters'
    pattern = re.compile('.*'.join(re.escape(piece) for piece in pieces), re.S)
    return '' if any(pattern.search(text) for text in known) else 'in no string of the sources'


def sources():
    listed = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard', '--', '*.cpp', '*.h',
                             'python/elixir/*.py'],
                            cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.split('/')[0] not in NOT_PRODUCT]


def read(name):
    with open(os.path.join(REPOSITORY, name), encoding='utf-8') as file:
        return file.read()


def all_strings():
    return [text for name in sources() if os.path.exists(os.path.join(REPOSITORY, name))
            for text in (python_strings if name.endswith('.py') else strings)(read(name))]


class Quotations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.known = all_strings()

    def test_each_is_a_message_of_the_sources(self):
        found = quotations(read(PAGE))
        self.assertGreater(len(found), 30)
        faults = {line: fault for line in found if (fault := fault_of(line, self.known))}
        self.assertEqual(faults, {})

    def test_what_is_planted_is_found(self):
        page = read(PAGE) + '\n> `the training needs … of disk space`\n\n> `elixird is tired ({})`\n'
        faults = [line for line in quotations(page) if fault_of(line, self.known)]
        self.assertEqual(faults, ['`the training needs … of disk space`', '`elixird is tired ({})`'])

    def test_a_message_with_another_word_is_found(self):
        for line in quotations(read(PAGE)):
            word = max(re.findall(r'[a-z]+', line), key=len)
            self.assertNotEqual(fault_of(line.replace(word, word + 'x'), self.known), '', line)


class MadeUpSources(unittest.TestCase):
    def test_neighbours_are_joined(self):
        self.assertEqual(strings('f("a {} b "\n  "c {:.0f}", "d");'), ['a … b c …', 'd'])
        self.assertEqual(strings('f("a "  // why\n  "b" + x + "c");'), ['a b', 'c'])
        self.assertEqual(strings('#define A "a"\nint i; f("b" /* c */ "d");'), ['a', 'bd'])

    def test_strings_are_read_as_the_compiler_reads_them(self):
        self.assertEqual(strings(r'f("say \"{}\"\n", R"(raw "{{\n")", R"x(a)")x");'),
                         ['say "…"\n', 'raw "{\\n"', 'a)"'])
        self.assertEqual(strings("// \"not this\"\nchar c = '\"'; f(\"this\", 1'000);"), ['this'])
        self.assertEqual(strings('/* "not this"\n"nor this" */ f("this");'), ['this'])

    def test_strings_of_python(self):
        found = python_strings('raise Error(f"a {b!r} "\n            "c" + d)  # "not this"\nx = "e"')
        self.assertEqual(sorted(set(found) - {'a ', ' c'}), ['a … c', 'e'])

    def test_values_and_words_may_be_left_out(self):
        known = strings('error("the plan needs {} on the device ({} blocks) and may use {}: use fewer");')
        for line in ('`the plan needs … on the device (… blocks) and may use …`', '`needs … and may use …: use fewer`',
                     '`the plan needs … fewer`'):
            self.assertEqual(fault_of(line, known), '', line)
        for line in ('`the plan needs 3 on the device`', '`the plan needs … and may use … on the device`',
                     'the plan needs … on the device', '`… and … use`', '`the plan` needs `…`'):
            self.assertNotEqual(fault_of(line, known), '', line)


if __name__ == '__main__':
    unittest.main()
