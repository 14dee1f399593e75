"""Tests wait for conditions. A fixed sleep, and an upper bound of the time that something took, need a comment
`cannot fail by chance: WHY` on their line or the one before; programs with the label timing may have bounds."""

import glob
import os
import re
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
HELPERS = ('tests/support/patience.cpp', 'tests/e2e/harness.py')  # they poll
MARK = re.compile(r'cannot fail by chance: \S')
SLEEP = re.compile(r'\b(?:sleep_for|sleep_until|usleep|nanosleep)\(|::sleep\(|time\.sleep\(|\.wait_for\(std::chrono')
# The shell's. A minute is for ever, and so no wait.
SHELL_SLEEP = re.compile(r'''(?<![\w-])sleep(?: |['"], ['"])"?(\$|\d*\.?\d+)''')
SHELL_LOOP = re.compile(r'\b(?:until|while)\b.*\bdo sleep [^;]+; done')
CLOCK = r'(?:seconds_since\(|monotonic_ns\(\) ?-|\bnow\(\) ?-|time\.(?:monotonic|time)\(\) ?-|\bfinished\.seconds\b)'
BOUND = re.compile(r'(?:(?:EXPECT|ASSERT)_(LT|LE|GT|GE)|assert(Less|Greater)(?:Equal)?)\(')


def sleeps(line):
    if SLEEP.search(line):
        return True
    found = SHELL_SLEEP.search(line)
    return bool(found) and not SHELL_LOOP.search(line) and (found[1] == '$' or float(found[1]) < 60)


def arguments(text, begin):
    """Of the call whose parenthesis was opened before `begin`."""
    found, depth = [''], 0
    for letter in text[begin:]:
        depth += (letter in '([{') - (letter in ')]}')
        if depth < 0:
            break
        if letter == ',' and depth == 0:
            found.append('')
        else:
            found[-1] += letter
    return found


def elapsed(text):
    """A pattern of what holds time that has passed: the clock, and variables that it went into."""
    pattern, names = CLOCK, None
    while names != (names := set(re.findall(rf'(\w+)\s*\+?=(?!=)[^;=\n]*{pattern}', text))):
        pattern = '|'.join([CLOCK, *(rf'\b{name}\b' for name in sorted(names))])
        pattern = f'(?:{pattern})'
    return re.compile(pattern)


def bounds(text):
    """The lines of assertions that time is not more than something."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    passed = elapsed(text)
    for match in BOUND.finditer(text):
        given = arguments(text, match.end())
        bounded = 0 if match[1] in ('LT', 'LE') or match[2] == 'Less' else 1
        if len(given) > bounded and passed.search(given[bounded]):
            yield text.count('\n', 0, match.start())


def findings(text, measures=False):  # numbers of lines; `measures`: the program has the label timing
    lines = text.split('\n')
    found = {i for i, line in enumerate(lines) if sleeps(line)} | (set() if measures else set(bounds(text)))
    return [i + 1 for i in sorted(found) if not MARK.search(lines[i]) and not (i > 0 and MARK.search(lines[i - 1]))]


def timing_sources():
    timing, others = set(), set()
    for path in glob.glob(f'{REPOSITORY}/tests/*/CMakeLists.txt'):
        with open(path, encoding='utf-8') as file:
            for call in re.findall(r'elixir_(?:gpu_)?test\(([^()]*)\)', file.read()):
                sources = {os.path.join(os.path.dirname(path), name) for name in re.findall(r'[\w/]+\.cpp', call)}
                (timing if re.search(r'LABELS [^)]*\btiming\b', call) else others).update(sources)
    return timing - others


class Waits(unittest.TestCase):
    def test_none_fails_by_chance(self):
        measures, found = timing_sources(), []
        self.assertTrue(measures)
        for path in glob.glob(f'{REPOSITORY}/tests/**/*', recursive=True):
            name = os.path.relpath(path, REPOSITORY)
            if path.endswith(('.cpp', '.h', '.py', '.sh')) and name not in (*HELPERS, 'tests/tidy/waits_test.py'):
                with open(path, encoding='utf-8') as file:
                    found += [f'{name}:{line}' for line in findings(file.read(), path in measures)]
        self.assertEqual(sorted(found), [])

    def test_what_is_planted_is_found(self):
        took = 'const double took_s = seconds_since(begin_ns);\nleast = std::min(least, took_s);\n'
        for text in ('::usleep(5);', 'std::this_thread::sleep_for(kPause);', '    time.sleep(0.3)', 'sleep 2',
                     'exec sleep 0.2', '"sleep", "5"', 'for i in 1 2; do sleep 0.1; done', 'sleep "$long"',
                     '::sleep(1);', 'EXPECT_EQ(f.wait_for(std::chrono::seconds(1)), s);',
                     'EXPECT_LT(seconds_since(begin_ns), 5);', f'{took}ASSERT_LE(took_s * f(1, 2), 2) << "a, b";',
                     f'{took}EXPECT_GT(\n    2, least);', 'self.assertLess(time.monotonic() - start, 30)',
                     'self.assertGreaterEqual(9, finished.seconds)'):
            self.assertEqual(len(findings(text)), 1, text)
            marked = '\n'.join(f'// cannot fail by chance: planted\n{line}' for line in text.split('\n'))
            self.assertEqual(findings(marked), [], text)
        self.assertEqual(findings('EXPECT_LT(seconds_since(begin_ns), 5);', measures=True), [])

    def test_nothing_else_is(self):
        for text in ('asleep(1000);', 'exec sleep 60 &', 'until [ -s f ]; do sleep 0.1; done', '"sleep", "1000"',
                     'EXPECT_GE(seconds_since(t), 5);', 'EXPECT_LE(count("a=1", seconds), seconds_since(t) + 2);',
                     '::usleep(5);  // cannot fail by chance: any instant is right', 'EXPECT_LT(a, b);'):
            self.assertEqual(findings(text), [], text)


if __name__ == '__main__':
    unittest.main()
