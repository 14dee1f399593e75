"""No file of the product has more than 400 lines and no function more than 70, as scripts/figures.py
counts them; and it counts what it should."""

import os
import sys
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import figures  # noqa: E402  (where it is, is known only now)


class MadeUpTree:
    """What figures.py reads of a tree, with one source."""

    def __init__(self, text):
        self.product = ['a/b.cpp']
        self.text = {'a/b.cpp': text}
        self.lines = {'a/b.cpp': text.count('\n')}


def body(lines):
    """Of a function: lines between its braces."""
    return '  f();\n' * lines


class Sizes(unittest.TestCase):
    def setUp(self):
        self.tree = figures.Tree()

    def test_no_file_is_too_long(self):
        self.assertEqual(figures.long_files(self.tree), [])

    def test_no_function_is_too_long(self):
        self.assertEqual(figures.long_functions(self.tree), [])

    def test_functions_are_found_at_all(self):
        found = figures.functions(self.tree)
        self.assertGreater(len(found), len(self.tree.product))
        # Each room has some.
        self.assertEqual({self.tree.room(path) for path in self.tree.product if path.endswith('.cpp')} -
                         {self.tree.room(path) for _, path, _ in found}, set())


class WhatIsCounted(unittest.TestCase):
    def found(self, text):
        return figures.functions_of(text)

    def test_a_long_file_is_told(self):
        self.tree = MadeUpTree('int a;\n' * 401)
        with self.assertRaises(AssertionError):
            Sizes.test_no_file_is_too_long(self)

    def test_long_functions_are_told(self):
        for head in ('void f() {', 'void A::f(int a = {},\n          int b) const noexcept {',
                     'A::A(int a) : Base(a), b_{a}, c_(a) {', 'auto f() -> std::vector<int> {',
                     'const auto f = [](int a) {', 'TEST(A, B) {', 'bool A::operator==(const A&) const {',
                     'A::A() try : a_(1) {', 'template <typename T>\nstruct A f(T t) {',
                     'class A {\n public:\n  struct B {\n    int c = 0;\n  };\n  void f() {',
                     'namespace a {\nextern "C" {\nint f() {', "char c = '{';\nint f() {",
                     'void f() ELIXIR_REQUIRES(mutex_) {'):
            text = head + '\n' + body(69) + '}\n'
            text += '}' * (text.count('{\n') - 1 - text.count('};')) if text.count('{\n') > 1 else ''
            self.tree = MadeUpTree(text)
            with self.assertRaises(AssertionError, msg=head):
                Sizes.test_no_function_is_too_long(self)

    def test_the_longest_that_may_be(self):
        self.assertEqual(self.found('void f() {\n' + body(68) + '}\n'), [(1, 70)])

    def test_what_is_no_function(self):
        for text in ('namespace a {\n' + 'int b;\n' * 80 + '}\n',
                     'class A final : public B<C()> {\n' + ' int b = 0;\n' * 80 + '};\n',
                     'const std::map<int, int> kTable = {\n' + '  {1, 2},\n' * 80 + '};\n',
                     'enum class A : int {\n' + '  kB,\n' * 80 + '};\n',
                     '#define F() {\\\n  f();\\\n' + ' \\\n' * 80 + '  }\n',
                     '// void f() {\n' * 80, 'const char* text = R"(void f() {\n' + '\n' * 80 + ')";\n'):
            self.assertEqual(self.found(text), [], text[:60])

    def test_functions_of_a_class_stand_by_themselves(self):
        text = 'namespace a {\nclass B {\n  B() : c_{1} {}\n\n  int f() {\n    return 1;\n  }\n};\n}\n'
        self.assertEqual(self.found(text), [(3, 1), (5, 3)])

    def test_braces_that_do_not_pair_are_an_error(self):
        for text in ('void f() {\n', 'namespace a {\nint b;\n', '}\n'):
            with self.assertRaises(ValueError):
                self.found(text)

    def test_who_holds_the_choice_of_exchange(self):
        for member in ('Exchange exchange;', 'shm::Exchange exchange_ = shm::Exchange::kHost;',
                       'const std::optional<shm::Exchange> exchange = {};'):
            self.assertTrue(figures.holds_choice('\n  int a = 1;\n  ' + member + '\n'), member)
        for member in ('Exchange& exchange_;', 'std::unique_ptr<Exchange> exchange_;',
                       'Exchange* exchange = nullptr;', 'using shm::Exchange;', 'uint32_t exchange;',
                       'Exchange exchange() const;', 'void f() {\n    Exchange exchange;\n  }'):
            self.assertFalse(figures.holds_choice('\n  ' + member + '\n'), member)


if __name__ == '__main__':
    unittest.main()
