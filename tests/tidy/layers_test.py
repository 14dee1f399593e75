"""docs/design/layers.md is true: rooms include what their rows name, which stands above them, and
nothing else; LibTorch, CUDA, ZeroMQ and JSON stand in their rooms alone."""

import os
import re
import subprocess
import unittest

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
OUTSIDE = ('tests', 'bench', 'examples', 'cmake')
# What an include in angle brackets says of the libraries that a row may name. The others (the
# standard library, the system, fmt) are everybody's.
LIBRARIES = [
    ('LibTorch', re.compile(r'(ATen|c10|torch)/')),
    ('CUDA', re.compile(r'cuda\w*\.h|cublas\w*\.h')),
    ('NCCL', re.compile(r'nccl\.h')),
    ('ZeroMQ', re.compile(r'zmq')),
    ('JSON', re.compile(r'nlohmann/')),
    ('TOML', re.compile(r'toml\+\+/')),
    ('Boost.Interprocess', re.compile(r'boost/')),
    ('libnuma', re.compile(r'numa\w*\.h')),
    ('CLI11', re.compile(r'CLI/')),
    ('spdlog', re.compile(r'spdlog/')),
]


def room_of(path):
    parts = path.split('/')
    return '/'.join(parts[:2]) if parts[0] == 'client' and len(parts) > 2 else parts[0]


def sources():
    listed = subprocess.run(['git', 'ls-files', '--', '*.h', '*.cpp', '*.cu'], cwd=REPOSITORY,
                            check=True, capture_output=True, text=True).stdout.split()
    return [path for path in listed if path.split('/')[0] not in OUTSIDE and
            os.path.exists(os.path.join(REPOSITORY, path))]


def read(path):
    with open(os.path.join(REPOSITORY, path), encoding='utf-8') as file:
        return file.read()


def table():
    """room -> (rooms it may include, libraries), in the order of the rows."""
    rows = {}
    for line in read('docs/design/layers.md').splitlines():
        match = re.match(r'\| `([\w/]+)` \|([^|]*)\|([^|]*)\|([^|]*)\|', line)
        if match:
            rows[match[1]] = (set(re.findall(r'`([\w/]+)`', match[2] + match[3])),
                              {name.strip() for name in match[4].split(',')} - {''})
    return rows


def included(paths):
    """room -> {room it includes: a file that does}, and the same of libraries."""
    rooms, libraries = {}, {}
    known = set(paths)
    for path in paths:
        room = room_of(path)
        rooms.setdefault(room, {})
        libraries.setdefault(room, {})
        text = read(path)
        for name in re.findall(r'^\s*#include "([^"]+)"', text, re.M):
            if name in known and room_of(name) != room:
                rooms[room][room_of(name)] = path
        for header in re.findall(r'^\s*#include <([^>]+)>', text, re.M):
            for library, pattern in LIBRARIES:
                if pattern.match(header):
                    libraries[room][library] = path
    return rooms, libraries


class Layers(unittest.TestCase):
    def setUp(self):
        self.rows = table()
        self.rooms, self.libraries = included(sources())

    def test_every_room_has_a_row(self):
        self.assertEqual(sorted(self.rooms), sorted(self.rows))

    def test_rooms_include_what_their_rows_name(self):
        for room, (may, _) in self.rows.items():
            for other, path in self.rooms[room].items():
                self.assertIn(other, may, f'{path}: {room} may not include {other}')
            self.assertEqual(may - set(self.rooms[room]), set(), f'{room} includes less than its row')

    def test_rows_name_what_stands_above(self):
        order = list(self.rows)
        for room, (may, _) in self.rows.items():
            for other in may:
                self.assertLess(order.index(other), order.index(room), f'{room} names {other}')

    def test_libraries_stand_in_their_rooms(self):
        for room, (_, may) in self.rows.items():
            for library, path in self.libraries[room].items():
                self.assertIn(library, may, f'{path}: {room} may not include {library}')

    def test_planner_reads_shapes_alone(self):
        for path in sources():
            if room_of(path) == 'planner':
                self.assertLessEqual(set(re.findall(r'#include "(shm/[^"]+)"', read(path))),
                                     {'shm/shape.h', 'shm/exchange.h', 'shm/step_rules.h'}, path)

    def test_it_can_fail(self):
        """A source that includes what it may not."""
        self.rooms['client/rcache']['client/exchange'] = 'a source'
        with self.assertRaises(AssertionError):
            self.test_rooms_include_what_their_rows_name()


if __name__ == '__main__':
    unittest.main()
