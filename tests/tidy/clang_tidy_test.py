"""scripts/tidy.py: .clang-tidy refuses a bug and nothing else, and a source is looked at again when
anything changes that the answer comes from."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import tidy  # noqa: E402  (where it is, is known only now)

GOOD = '''#include <string>
#include <utility>
std::string f(std::string a) {
  std::string b = std::move(a);
  a = "new";
  return b + a;
}
'''


class MadeUpTree:
    """What tidy.py reads of a tree: a.cpp includes a.h, which includes b.h; c.h stands apart."""

    def __init__(self, **changes):
        self.text = {'a.cpp': 'a', 'a.h': 'a', 'b.h': 'b', 'c.h': 'c',
                     **{name.replace('_', '.'): text for name, text in changes.items()}}
        self.includes = {'a.cpp': ['a.h'], 'a.h': ['b.h'], 'b.h': [], 'c.h': []}


class ClangTidy(unittest.TestCase):
    @unittest.skipUnless(shutil.which('clang-tidy'), 'there is no clang-tidy; scripts/setup.sh installs it')
    def test_a_use_after_move_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, clean in ((GOOD, True), (GOOD.replace('  a = "new";\n', ''), False)):
                source = os.path.join(folder, 'a.cpp')
                with open(source, 'w', encoding='utf-8') as file:
                    file.write(text)
                done = subprocess.run(
                    ['clang-tidy', '--quiet', f'--config-file={REPOSITORY}/.clang-tidy', source, '--',
                     '-std=c++20'], capture_output=True, text=True)
                self.assertEqual(done.returncode == 0, clean, done.stdout + done.stderr)
                self.assertEqual('bugprone-use-after-move' in done.stdout, not clean)

    def test_what_the_answer_comes_from_is_in_the_key(self):
        def key(rules='rules', command='command', **changes):
            return tidy.key_of('a.cpp', command, MadeUpTree(**changes), rules)
        known = key()
        self.assertEqual(key(), known)
        self.assertEqual(key(c_h='other'), known)
        for other in (key(a_cpp='other'), key(a_h='other'), key(b_h='other'), key(rules='other'),
                      key(command='other')):
            self.assertNotEqual(other, known)

    def test_comments_are_no_change_unless_they_speak_to_clang_tidy(self):
        text = 'int a = 1;  // one\n/* two\nlines */ const char* url = "http://there";\n'
        same = 'int a = 1;\n// another comment\nconst char* url = "http://there";  // see "there"\n'
        self.assertEqual(tidy.code_of(text), tidy.code_of(same))
        for other in (text.replace('1', '2'), text.replace('http://there', 'http://here'),
                      text.replace('// one', '// NOLINT'), text.replace('int a', 'inta')):
            self.assertNotEqual(tidy.code_of(text), tidy.code_of(other), other)

    def test_the_words_of_a_message_are_no_change(self):
        text = 'fail("{} is no file: give\\n"\n     "another one", path, "rb");\n'
        same = 'fail(\n    "{} is not a file:\\nname another file", path,\n     "rb");\n'
        self.assertEqual(tidy.code_of(text), tidy.code_of(same))
        for other in (text.replace('{}', '{} {}'), text.replace('"rb"', '"wb"'), text.replace(', path', '')):
            self.assertNotEqual(tidy.code_of(text), tidy.code_of(other), other)


if __name__ == '__main__':
    unittest.main()
