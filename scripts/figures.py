#!/usr/bin/env python3
"""The figures by which the architecture is held: what is counted, and today's counts.

    scripts/figures.py            a table
    scripts/figures.py --json     the same by name
    scripts/figures.py --list X   what figure X counts, an item a line
    scripts/figures.py --check    exit code 1 where a limit does not hold (tests/tidy/figures_test.py)

Product code is what git knows of .h, .cpp and .cu outside tests/, bench/ and examples/. A room is a
folder of the product: a top-level one or, where that has folders itself, each of those and what lies
beside them. Everything is read from the sources as clang-format leaves them; nothing is built. Why a
limit is where it is stands in docs/design/decisions.md.
"""

import argparse
import collections
import itertools
import json
import os
import re
import statistics
import subprocess
import sys

import test_rungs

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
OUTSIDE = ('tests/', 'bench/', 'examples/')
# Arithmetic in tight loops, where a check costs what the code is for.
KERNELS = ('kernels/', 'optim_cpu/')
EXCHANGE_PATH = ('client/exchange/', 'client/collectives/', 'client/train/grad_offload')
LONG_FILE = 400
LONG_FUNCTION = 70
SHARED_MEMBERS = 4

INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)
CHECK = re.compile(r'\bELIXIR_D?CHECK\w*\(')


class Tree:
    """The sources, read once."""

    def __init__(self, root=ROOT):
        self.root = root
        self.files = self.tracked('*.h', '*.cpp', '*.cu')
        self.product = [path for path in self.files if not path.startswith(OUTSIDE)]
        self.text = {path: self.read(path) for path in self.files}
        self.lines = {path: text.count('\n') for path, text in self.text.items()}
        self.includes = {path: [name for name in INCLUDE.findall(text) if name in self.text]
                         for path, text in self.text.items()}
        folders = {os.path.dirname(path) for path in self.product}
        self.divided = {folder.split('/')[0] for folder in folders if '/' in folder}

    def tracked(self, *patterns):
        listed = subprocess.run(['git', 'ls-files', '--', *patterns], cwd=self.root, check=True,
                                capture_output=True, text=True).stdout
        return [path for path in listed.splitlines() if os.path.exists(os.path.join(self.root, path))]

    def read(self, path):
        with open(os.path.join(self.root, path), encoding='utf-8') as file:
            return file.read()

    def room(self, path):
        parts = path.split('/')
        return '/'.join(parts[:2]) if len(parts) > 2 and parts[0] in self.divided else parts[0]


# ---- structs ----

STRUCT = re.compile(r'^( *)(?:struct|class)\s+(?:\[\[\w+\]\]\s+)?(\w+)(?:\s+final)?(?:\s*:[^{;]*)?\s*\{',
                    re.M)
MEMBER = re.compile(r'^(?:const |mutable |static |constexpr |inline )*[\w:<>,\s*&]+?[\s*&>]'
                    r'(\w+(?:\s*=[^,;]*|\{[^}]*\})?(?:,\s*\w+(?:\s*=[^,;]*|\{[^}]*\})?)*)$')


def without_comments(text):
    return re.sub(r'//[^\n]*|/\*.*?\*/', '', text, flags=re.S)


def members_of(body):
    """Names of data members that stand directly in a struct's body."""
    body = re.sub(r'\s*\bELIXIR_GUARDED_BY\([^)]*\)', '', body)
    flat, depth = [], 0
    for char in body:
        if char in '({':
            depth += 1
        if depth == 0:
            flat.append(char)
        if char in ')}':
            depth -= 1
            flat.append('()' if char == ')' else '{}')
    names = []
    for statement in re.split(r';|\{\}\s*(?=\n)|\b(?:public|private|protected):', ''.join(flat)):
        statement = ' '.join(statement.split())
        if not statement or '()' in statement or statement.startswith(
                ('using', 'friend', 'static', 'enum', 'struct', 'class', 'template', 'explicit')):
            continue
        match = MEMBER.match(statement.replace('{}', ''))
        if match is None:
            continue
        for part in match.group(1).split(','):
            name = re.match(r'\s*(\w+)', part)
            if name:
                names.append(name.group(1).rstrip('_'))
    return names


def struct_bodies(tree):
    """(path, name, body) of every struct and class of the product."""
    found = []
    for path in tree.product:
        text = without_comments(tree.text[path])
        for match in STRUCT.finditer(text):
            end = text.find('\n' + match.group(1) + '};', match.end())
            found.append((path, match.group(2), text[match.end():end if end >= 0 else None]))
    return found


def structs(tree):
    """(path, name, members) of every struct and class of the product."""
    return [(path, name, members_of(body)) for path, name, body in struct_bodies(tree)]


# Members by which threads take turns: two classes that have them have no data in common.
TURNS = {'mutex', 'changed', 'stopping', 'thread', 'threads', 'done', 'idle', 'failure'}


def mirrored_structs(tree):
    kept = [(path, name, set(members) - TURNS) for path, name, members in structs(tree) if members]
    return [f'{a[1]} ({a[0]}) ~ {b[1]} ({b[0]}): {", ".join(sorted(a[2] & b[2]))}'
            for a, b in itertools.combinations(kept, 2)
            if len(a[2] & b[2]) >= SHARED_MEMBERS and (a[0], a[1]) != (b[0], b[1])]


# A member that holds the choice: the enum or an optional of it, by value.
CHOICE = re.compile(r'^\s*(?:const\s+)?(?:(?:\w+::)*Exchange|std::optional<\s*(?:\w+::)*Exchange\s*>)\s+'
                    r'\w+\s*(?:=[^;]*|\{\})?;', re.M)


def holds_choice(body):
    """Whether a struct's body, its functions' and inner structs' aside, has such a member."""
    return CHOICE.search(folded(body, r'\{[^{}]+\}', '{}')) is not None


def exchange_holders(tree):
    return [f'{name} ({path})' for path, name, body in struct_bodies(tree) if holds_choice(body)]


def exchange_enums(tree):
    return [f'{name} ({path})' for path in tree.product
            for name in re.findall(r'enum class (\w*Exchange\w*)',
                                   without_comments(tree.text[path]))]


# ---- rooms ----

def room_edges(tree):
    edges = collections.defaultdict(set)
    for path in tree.product:
        for name in tree.includes[path]:
            if name in tree.product and tree.room(name) != tree.room(path):
                edges[tree.room(path)].add(tree.room(name))
    return edges


def reachable(edges, start):
    seen, open_ = set(), [start]
    while open_:
        for room in edges[open_.pop()]:
            if room not in seen:
                seen.add(room)
                open_.append(room)
    return seen


def rooms_in_cycles(tree):
    edges = room_edges(tree)
    return sorted(room for room in list(edges) if room in reachable(edges, room))


def layer_exceptions(tree):
    """Single files or folders in parentheses of layers.md's table."""
    rows = [line for line in tree.read('docs/design/layers.md').splitlines() if line.startswith('| ')]
    return [name for row in rows for inner in re.findall(r'\(([^)]*)\)', row)
            for name in re.findall(r'`([^`]+)`', inner)]


def public_closure(tree):
    public = next((path for path in ('client/elixir/elixir.h', 'client/elixir.h') if path in tree.text))
    seen, open_ = set(), [public]
    while open_:
        for name in tree.includes[open_.pop()]:
            if name not in seen:
                seen.add(name)
                open_.append(name)
    return sorted(seen)


# ---- checks and tests ----

WITHOUT_TORCH = re.compile(r'if\(NOT ELIXIR_WITH_TORCH\)\s*return\(\)')


def before_torch(tree, cmake_list):
    """Of a list, what is built without LibTorch, as the sanitizer presets do: up to its return."""
    return WITHOUT_TORCH.split(re.sub(r'#[^\n]*', '', tree.read(cmake_list)))[0]


def sanitized_share(tree):
    """Of client's lines in .cpp, in percent."""
    seen = set()
    for room in re.findall(r'add_subdirectory\((\w+)\)', before_torch(tree, 'client/CMakeLists.txt')):
        listed = before_torch(tree, f'client/{room}/CMakeLists.txt')
        seen.update(f'client/{room}/{name}' for name in re.findall(r'[\w/]+\.cpp', listed))
    client = [path for path in tree.product if path.startswith('client/') and path.endswith('.cpp')]
    return 100 * sum(tree.lines[path] for path in client if path in seen) / sum(
        tree.lines[path] for path in client)


def checks_a_kloc(tree):
    control = [path for path in tree.product if not path.startswith(KERNELS)]
    checks = sum(len(CHECK.findall(tree.text[path])) for path in control)
    return 1000 * checks / sum(tree.lines[path] for path in control)


def untested_exchange_sources(tree):
    tests = {os.path.basename(path) for path in tree.files if path.startswith('tests/')}
    return [path for path in tree.product if path.startswith(EXCHANGE_PATH) and path.endswith('.cpp')
            and os.path.basename(path)[:-4] + '_test.cpp' not in tests]


# ---- sizes ----

# Comments, strings, characters and what is the preprocessor's.
NO_CODE = re.compile(r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^()\s\\"]*)\(.*?\)(?P=mark)"'
                     r"""|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*""",
                     re.S | re.M)
# How what stands before a function's body ends, where @ is a pair of parentheses.
BEFORE_BODY = re.compile(r'@\s*(?:const|noexcept|override|final|mutable|try|&|@|\s)*$|@[^@=]*->[^=]*$|'
                         r'=\s*\[[^]]*\]\s*$')
CONTAINER = re.compile(r'\b(?:namespace|struct|class|union)\b|\bextern\s*$')


def blank(text):
    return re.sub(r'[^\n]', ' ', text)


def folded(head, pair, sign):
    while re.search(pair, head):
        head = re.sub(pair, sign, head)
    return head


def kind_of_brace(head):
    """What begins with a brace, by the statement before it: a container of declarations (namespace,
    class), a function, or values (an enum's, an initialiser's)."""
    head = re.sub(r'\[\[.*?\]\]', ' ', folded(head, r'\([^()]*\)', ' @ '), flags=re.S)
    if re.search(r'\benum\b', head):
        return 'values'
    if BEFORE_BODY.search(head):
        return 'function'
    return 'container' if CONTAINER.search(folded(head, r'<[^<>]*>', ' ')) else 'values'


def closing_brace(code, opening):
    depth = 0
    for match in re.finditer(r'[{}]', code[opening:]):
        depth += 1 if match.group() == '{' else -1
        if depth == 0:
            return opening + match.start()
    raise ValueError('a brace is not closed')


def functions_of(text):
    """(first line, lines) of every function, its signature included. What is defined inside a
    function is part of it."""
    code = NO_CODE.sub(lambda match: blank(match.group()), text)
    found, begin, at, depth = [], 0, 0, 0  # begin: of the statement
    token = re.compile(r'[{};]|\b(?:public|private|protected)\s*:')
    while match := token.search(code, at):
        at = match.end()
        kind = kind_of_brace(code[begin:match.start()]) if match.group() == '{' else ''
        if kind in ('', 'container'):
            depth += {'{': 1, '}': -1}.get(match.group(), 0)
            begin = at
            continue
        at = closing_brace(code, match.start()) + 1
        if kind == 'values':  # the statement goes on behind them
            code = code[:match.start()] + blank(code[match.start():at - 1]) + '@' + code[at:]
            continue
        first = at - len(code[begin:at].lstrip())
        found.append((text.count('\n', 0, first) + 1, text.count('\n', first, at) + 1))
        begin = at
    if depth != 0:
        raise ValueError('braces do not pair')
    return found


def functions(tree):
    """(lines, path, first line) of every function."""
    found = []
    for path in tree.product:
        try:
            found += [(lines, path, first) for first, lines in functions_of(tree.text[path])]
        except ValueError as failure:
            raise ValueError(f'{path}: {failure}') from failure
    return found


def long_files(tree):
    return [f'{path} ({tree.lines[path]} lines)' for path in tree.product
            if tree.lines[path] > LONG_FILE]


def long_functions(tree):
    return [f'{path}:{line} ({length} lines)' for length, path, line in functions(tree)
            if length > LONG_FUNCTION]


# The first qualified name before a parenthesis: of a definition outside of its class, its own.
QUALIFIED = re.compile(r'\b(\w+)::(?:~?\w+|operator[^(]*)\s*\(')


def class_lines(tree):
    """(room, class) -> lines of its body in the header and of its functions in the room's sources."""
    lines = collections.Counter()
    for path, name, body in struct_bodies(tree):
        lines[tree.room(path), name] += body.count('\n') + 1
    for length, path, first in functions(tree):
        text = tree.text[path].split('\n', first + 3)[first - 1:first + 3]
        for name in QUALIFIED.findall(' '.join(text)):
            if (tree.room(path), name) in lines:
                lines[tree.room(path), name] += length
                break
    return lines


def largest_class(tree):
    return max(class_lines(tree).values())


def lines_of_tests(tree):
    return sum(tree.read(path).count('\n')
               for path in tree.tracked(*(f'tests/*{ending}' for ending in ('.h', '.cpp', '.cu', '.py', '.sh'))))


def product_lines(tree):
    return sum(tree.lines[path] for path in tree.product)


def seconds_of_rung(rung):
    """A function: seconds that the tests of a rung took in the last scripts/test.sh; 0 if there was none."""
    def count(tree):
        log = os.path.join(tree.root, 'build', 'release', 'ctest.log')
        if not os.path.isfile(log):
            return 0
        return test_rungs.seconds_by_rung(test_rungs.read_log(log), test_rungs.patterns()).get(rung, 0)
    return count


FIGURES = {
    # name: (what it is, limit, function, whether it is a list)
    'exchange_holders': ('structs that hold the choice of --exchange', '<= 4', exchange_holders, True),
    'exchange_enums': ('enums that mean it', '<= 1', exchange_enums, True),
    'mirrored_structs': (f'pairs of structs sharing {SHARED_MEMBERS} members or more', '<= 50',
                         mirrored_structs, True),
    'rooms_in_cycles': ('rooms in a circle of includes', '<= 0', rooms_in_cycles, True),
    'layer_exceptions': ('exceptions in docs/design/layers.md', '<= 0', layer_exceptions, True),
    'public_closure': ("headers behind the public one", '<= 14', public_closure, True),
    'sanitized_client_percent': ('of client/, what sanitizers see', '>= 44', sanitized_share, False),
    'checks_a_kloc': ('checks in 1000 lines of control code', '>= 4.3', checks_a_kloc, False),
    'untested_exchange_sources': ('sources of the exchange path without a test of their name', '<= 0',
                                  untested_exchange_sources, True),
    'largest_class': ('lines of the largest class, over all of its files', '<= 1850', largest_class, False),
    'product_lines': ('lines of the product', '', product_lines, False),
    'test_lines': ('lines of the tests, for each line of the product', '',
                   lambda tree: lines_of_tests(tree) / product_lines(tree), False),
    'file_median': ('median of lines a file', '<= 70',
                    lambda tree: statistics.median(tree.lines[path] for path in tree.product), False),
    'largest_file': ('lines of the largest file', f'<= {LONG_FILE}',
                     lambda tree: max(tree.lines[path] for path in tree.product), False),
    'long_functions': (f'functions over {LONG_FUNCTION} lines', '<= 0', long_functions, True),
    **{f'rung_{rung}_seconds': (f'seconds of the default tests on rung {rung} (docs/design/tests.md)', '',
                                seconds_of_rung(rung), False) for rung in range(1, 6)},
}


def holds(value, limit):
    if not limit:
        return True
    relation, bound = limit.split()
    return value <= float(bound) if relation == '<=' else value >= float(bound)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--json', action='store_true', help='print one JSON object')
    parser.add_argument('--list', choices=[name for name, row in FIGURES.items() if row[3]],
                        help='what a figure counts, an item a line')
    parser.add_argument('--check', action='store_true', help='exit with 1 where a limit does not hold')
    parser.add_argument('--root', default=ROOT, help='the repository to look at (default: this one)')
    arguments = parser.parse_args()
    tree = Tree(arguments.root)
    if arguments.list:
        print('\n'.join(FIGURES[arguments.list][2](tree)))
        return 0
    values = {}
    for name, (_, _, count, is_list) in FIGURES.items():
        value = count(tree)
        values[name] = len(value) if is_list else round(value, 2)
    if arguments.json:
        print(json.dumps(values, indent=2))
    else:
        for name, (what, limit, _, _) in FIGURES.items():
            mark = '' if holds(values[name], limit) else '   <-- does not hold'
            print(f'{name:<26} {values[name]:>9}  {limit:<7} {what}{mark}')
    broken = [name for name, row in FIGURES.items() if not holds(values[name], row[1])]
    return 1 if arguments.check and broken else 0


if __name__ == '__main__':
    sys.exit(main())
