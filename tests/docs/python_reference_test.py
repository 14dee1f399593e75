"""Every public name of `import elixir` has a docstring that names its arguments, what it returns and raises, and
stands in the API reference."""

import os
import sys
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import python_reference  # noqa: E402  (where it is, is known only now)

MODULE = '''
class Thing:
    """A thing.

    Args:
        size: bytes.
    """

    def __init__(self, size):
        self.size = size

    @property
    def bytes(self):
        """Its size."""
        return self.size

    def grow(self, by=1, *more, **others):
        """Grows.

        Args:
            by, more: bytes.
            others: nothing.

        Returns:
            Bytes.

        Raises:
            ValueError: it is large.
        """
        def inner():
            raise KeyError
        if by:
            raise ValueError
        return inner


@typing.overload
def plain(what: int) -> int: ...


def plain():
    """Does it:

        plain()

    and returns nothing."""


number = 1
"""A number."""
'''


def entries_of(module, names=('Thing', 'plain', 'number')):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (('__init__', f'from elixir._one import {", ".join(names)}\n__all__ = {list(names)!r}\n'),
                           ('_one', module)):
            with open(os.path.join(folder, f'{name}.py'), 'w', encoding='utf-8') as file:
                file.write(text)
        return python_reference.Package(folder).public()


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        package = python_reference.Package(python_reference.PACKAGE)
        cls.entries = package.public() + package.programs()

    def test_docstrings_say_all(self):
        self.assertEqual(python_reference.faults(self.entries), [], 'scripts/python_reference.py --check')

    def test_all_names_are_in_the_page(self):
        page = python_reference.page(self.entries)
        for name in ('elixir.AdamW', 'AdamW.step', 'AdamW.plan', 'elixir.Adam', 'Plan.save', 'elixir.Error',
                     'elixir.gathered', 'elixir.save', 'elixir.hf', 'elixir.hf.from_pretrained', 'elixir.__version__',
                     'elixir.generate.generate', 'elixir.tokenize.tokenize'):
            self.assertRegex(page, rf'(?m)^##+ {name} ')
        with open(os.path.join(python_reference.PACKAGE, '__init__.py'), encoding='utf-8') as file:
            source = file.read()
        names = python_reference.names_of_all(python_reference.ast.parse(source))
        self.assertGreater(len(names), 12)
        for name in names:
            self.assertIn(f'## elixir.{name} {{', page)


class Planted(unittest.TestCase):
    """What is missing is found."""

    def faults_without(self, text, instead=''):
        self.assertIn(text, MODULE)
        return python_reference.faults(entries_of(MODULE.replace(text, instead)))

    def test_nothing_is_missing(self):
        self.assertEqual(python_reference.faults(entries_of(MODULE)), [])

    def test_docstrings(self):
        self.assertEqual(self.faults_without('"""Its size."""'), ['Thing.bytes: no docstring'])
        self.assertEqual(self.faults_without('"""A number."""'), ['elixir.number: no docstring'])

    def test_arguments(self):
        self.assertEqual(self.faults_without('        size: bytes.\n'), ['elixir.Thing: Args does not name size'])
        self.assertEqual(self.faults_without('by, more: b', 'by, less: b'),
                         ['Thing.grow: Args does not name more', 'Thing.grow: Args names less, which it does not take'])

    def test_what_is_returned_and_raised(self):
        self.assertEqual(self.faults_without('        Returns:\n            Bytes.\n'),
                         ['Thing.grow: it returns a value, and there is no Returns'])
        self.assertEqual(self.faults_without('        Raises:\n            ValueError: it is large.\n'),
                         ['Thing.grow: it raises, and there is no Raises'])
        # What a function inside raises is its own.
        self.assertEqual(self.faults_without('        if by:\n            raise ValueError\n'), [])

    def test_a_name_that_nothing_defines(self):
        with self.assertRaises(LookupError):
            entries_of(MODULE, ('Thing', 'nothing'))

    def test_the_page(self):
        page = python_reference.page(entries_of(MODULE))
        self.assertIn('```py\nThing.grow(by=1, *more, **others)\n```', page)
        self.assertIn('* `by, more`: bytes.\n', page)
        self.assertIn('Does it:\n\n```py\nplain()\n```\n\nand returns', page.replace('\n\n```\n', '\n```\n\n'))


if __name__ == '__main__':
    unittest.main()
