"""A header that a version stands for does not change without the version: scripts/versions.py."""

import os
import re
import sys
import tempfile
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(REPOSITORY, 'scripts'))

import versions  # noqa: E402  (where it is, is known only now)


class Versions(unittest.TestCase):
    def test_headers_change_with_their_versions(self):
        for version in versions.VERSIONS:
            self.assertEqual(versions.complaint(version), '')


class MadeUpHeaders(unittest.TestCase):
    """Two small headers, a version in one of them."""

    VERSION = versions.Version('kVersion', 'a.h', ('b.h',))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.write('a.h', 'inline constexpr uint32_t kVersion = 5;  // raise it\n')
        self.write('b.h', 'struct B {\n  int a;\n  char b;\n};\n')
        self.assertEqual(self.store(), '')
        self.assertEqual(self.complaint(), '')

    def write(self, path, text):
        with open(os.path.join(self.root, path), 'w', encoding='utf-8') as file:
            file.write(text)

    def replace(self, path, old, new):
        text = versions.read(self.root, path)
        self.assertIn(old, text)
        self.write(path, text.replace(old, new))

    def store(self, same=False):
        return versions.store(self.VERSION, same, self.root)

    def complaint(self):
        return versions.complaint(self.VERSION, self.root)

    def test_a_changed_header_is_told_with_the_remedy(self):
        self.replace('b.h', 'int a', 'long a')
        self.assertIn('raise kVersion in a.h, then run scripts/versions.py --store', self.complaint())

    def test_members_in_another_order_are_a_change(self):
        self.write('b.h', 'struct B {\n  char b;\n  int a;\n};\n')
        self.assertIn('raise kVersion', self.complaint())

    def test_comments_and_white_space_are_none(self):
        self.write('b.h', '// new\nstruct B { int a; /* here,\n too */ char b; };\n')
        self.assertEqual(self.complaint(), '')

    def test_text_that_looks_like_a_comment_is_one_of_a_header(self):
        self.write('b.h', 'const char* kB = "// a";\n')
        before = versions.hash_of(self.VERSION, self.root)
        self.write('b.h', 'const char* kB = "// b";\n')
        self.assertNotEqual(versions.hash_of(self.VERSION, self.root), before)

    def test_the_hash_is_not_stored_for_the_same_version_unasked(self):
        self.replace('b.h', 'int a', 'long a')
        self.assertIn('raise kVersion', self.store())
        self.assertIn('raise kVersion', self.complaint())
        self.assertEqual(self.store(same=True), '')
        self.assertEqual(self.complaint(), '')

    def test_a_raised_version_wants_its_hash(self):
        self.replace('b.h', 'int a', 'long a')
        self.replace('a.h', 'kVersion = 5', 'kVersion = 6')
        self.assertIn('run scripts/versions.py --store', self.complaint())
        self.assertEqual(self.store(), '')
        self.assertEqual(self.complaint(), '')
        self.assertEqual(versions.read(self.root, 'a.h').count('versions.py:'), 1)

    def test_a_version_does_not_go_back(self):
        self.replace('a.h', 'kVersion = 5', 'kVersion = 4')
        self.assertIn('raise it', self.store(same=True))


class NewestTorch(unittest.TestCase):
    LISTED = 'torch (%s)\nAvailable versions: %s, 2.14.1, 2.11.0\n  INSTALLED: 2.11.0\n  LATEST:    %s\n'

    def complaint(self, newest, pinned='2.15.0'):
        return versions.complaint_of_newest(self.LISTED % (newest, newest, newest), pinned)

    def test_a_newer_one_is_told_with_the_remedy(self):
        for newest in ('2.16.0', '2.15.1', '3.0.0', '2.100.0'):
            self.assertRegex(self.complaint(newest), rf'torch {newest} is there.*raise NEWEST_TORCH in scripts/setup.sh')

    def test_the_same_and_older_ones_are_none(self):
        for newest in ('2.15.0', '2.14.9', '2.9.1'):
            self.assertEqual(self.complaint(newest), '')

    def test_what_pip_says_in_place_of_a_list_is_told(self):
        self.assertIn('no network', versions.complaint_of_newest('ERROR: no network', '2.15.0'))

    def test_the_range_is_that_of_the_pinned_releases(self):
        newest, oldest_minor, newest_minor = versions.pinned_torch()
        self.assertEqual(newest.rpartition('.')[0], newest_minor)
        own = re.search(r'^TORCH_VERSION=([0-9.]+)$', versions.read(versions.ROOT, 'scripts/setup.sh'), re.M).group(1)
        self.assertEqual(own.rpartition('.')[0], oldest_minor)


if __name__ == '__main__':
    unittest.main()
