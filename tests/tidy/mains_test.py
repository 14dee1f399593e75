"""Every program begins with settle_inherited() (base/inherited.h), so that no line of it lands in a file or a
socket where its starter had closed descriptors 0 to 2. It then returns run_main() (base/run_main.h), so that lost
output and lack of memory have their exit code; benchmarks need not. Programs of tests and examples need not: tests are
started by ctest, and examples are programs of users, for whom the optimizer does it."""

import os
import re
import subprocess
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
OUTSIDE = ('tests', 'examples')
BENCHMARKS = 'bench'
MAIN = re.compile(r'^int main\([^)]*\) (?:try )?\{\n((?:.*\n)*?)\}', re.M)
FIRST = re.compile(r'\s*(?:using namespace elixir;\s*)?(?:elixir::)?settle_inherited\(\);')


def sources():
    listed = subprocess.run(['git', 'ls-files', '--', '*.cpp'], cwd=REPOSITORY, check=True,
                            capture_output=True, text=True).stdout.split()
    return [path for path in listed if path.split('/')[0] not in OUTSIDE and
            os.path.exists(os.path.join(REPOSITORY, path))]


def begins_well(text):
    return all(FIRST.match(body) for body in MAIN.findall(text))


def ends_well(text):
    return all(re.search(r'return (?:elixir::)?run_main\(', body) for body in MAIN.findall(text))


class Mains(unittest.TestCase):
    def test_every_main_settles_first(self):
        found = 0
        for path in sources():
            with open(os.path.join(REPOSITORY, path), encoding='utf-8') as file:
                text = file.read()
            self.assertEqual(len(MAIN.findall(text)), text.count('int main('), f'{path}: its main is not seen')
            found += text.count('int main(')
            self.assertTrue(begins_well(text), f'{path}: main() must begin with settle_inherited()')
            if path.split('/')[0] != BENCHMARKS:
                self.assertTrue(ends_well(text), f'{path}: main() must return run_main()')
        self.assertGreater(found, 10)

    def test_it_can_fail(self):
        self.assertTrue(begins_well('int main(int argc, char** argv) {\n  elixir::settle_inherited();\n  run();\n}\n'))
        self.assertFalse(begins_well('int main() {\n  open_files();\n  elixir::settle_inherited();\n}\n'))
        self.assertTrue(ends_well('int main() {\n  settle_inherited();\n  return run_main("a", run);\n}\n'))
        self.assertFalse(ends_well('int main() {\n  settle_inherited();\n  return run();\n}\n'))


if __name__ == '__main__':
    unittest.main()
