#!/usr/bin/env python3
"""Makes the reference of `import elixir` from its docstrings, as one Markdown page.

    scripts/python_reference.py            prints the page
    scripts/python_reference.py --check    prints what a docstring does not say; exit 1 if there is any

The sources are read, not imported: torch and a build are not needed. Public are the names of `elixir.__all__`, those of
`elixir.hf.__all__`, the methods and properties of public classes without an underscore, and the functions of programs
(elixir.generate.generate).
scripts/api_reference.sh puts the page beside that of the C++ library.
"""

import argparse
import ast
import glob
import os
import re
import sys
import textwrap
from dataclasses import dataclass, field

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
PACKAGE = os.path.join(ROOT, 'python', 'elixir')
NATIVE = os.path.join(ROOT, 'python', 'binding', 'module.cpp')  # has Python for classes that C++ raises
SECTIONS = ('Args', 'Returns', 'Raises', 'Attributes')
SECTION = re.compile(rf'^({"|".join(SECTIONS)}):[ \t]*(.*)$')
ITEM = re.compile(r'^ {4}([\w.*]+(?:, [\w.*]+)*): (.*)$')
LINE = 100  # columns of a signature


@dataclass
class Entry:
    """One public name: a function, a class with its members, a value or a module."""

    name: str                      # elixir.AdamW, AdamW.step
    kind: str                      # function, class, property, value, module
    doc: str
    signature: str = ''
    parameters: list[str] = field(default_factory=list)
    returns: bool = False          # a value
    raises: bool = False
    members: list['Entry'] = field(default_factory=list)


class Package:
    """The modules of a folder, parsed; names are followed through their imports."""

    def __init__(self, folder, native=NATIVE):
        self.folder = folder
        self.native = native
        self.trees = {}

    def tree(self, module):
        if module not in self.trees:
            path = os.path.join(self.folder, f'{module}.py')
            with open(path, encoding='utf-8') as file:
                self.trees[module] = ast.parse(file.read(), path)
        return self.trees[module]

    def native_tree(self):
        with open(self.native, encoding='utf-8') as file:
            texts = re.findall(r'py::exec\(R"\((.*?)\)"', file.read(), re.S)
        return ast.parse('\n'.join(texts))

    def find(self, module, name):
        """The node that defines a name in a module, and the docstring after it where it is a value."""
        body = self.tree(module).body
        for at, node in enumerate(body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name and not is_overload(node):
                return module, node, ''
            if name in assigned_names(node):
                for native in self.native_tree().body:
                    if isinstance(native, ast.ClassDef) and native.name == name:
                        return module, native, ''
                after = body[at + 1] if at + 1 < len(body) else None
                return module, node, text_of(after)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        if node.module == 'elixir':  # a module
                            return alias.name, self.tree(alias.name), ''
                        return self.find(node.module.removeprefix('elixir.'), alias.name)
        raise LookupError(f'{module}.py defines no {name}')

    def programs(self):
        """The functions of modules that are programs, too: python -m elixir.generate, elixir.generate.generate()."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.folder, '[a-z]*.py'))):
            module = os.path.splitext(os.path.basename(path))[0]
            for node in self.tree(module).body:
                if isinstance(node, ast.FunctionDef) and node.name == module:
                    found.append(function(f'elixir.{module}.{module}', node))
        return found

    def public(self, module='__init__', prefix='elixir.'):
        """The entries of a module's __all__, in its order."""
        found = []
        for name in names_of_all(self.tree(module)):
            where, node, doc = self.find(module, name)
            found.append(self.entry(prefix + name, where, node, doc))
        return found

    def entry(self, name, module, node, doc):
        if isinstance(node, ast.Module):
            members = self.public(module, name + '.')
            return Entry(name, 'module', ast.get_docstring(node) or '', members=members)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            return Entry(name, 'value', doc)
        if isinstance(node, ast.FunctionDef):
            return function(name, node)
        made = Entry(name, 'class', ast.get_docstring(node) or '')
        short = name.rsplit('.', 1)[-1]
        for each in self.members(module, node):
            if each.name == '__init__':
                init = function(name, each)
                made.signature, made.parameters = init.signature, init.parameters
            elif not each.name.startswith('_'):
                made.members.append(function(f'{short}.{each.name}', each))
        made.members.sort(key=lambda member: member.kind != 'property')
        if 'a program does not build it' in made.doc:
            made.signature = ''
        if re.search(r'arguments are those of \w+, and so are the methods', made.doc):
            made.members = []
        return made

    def members(self, module, node):
        """Methods of a class and of its bases in this module; those of a base that it replaces are left out."""
        own = [each for each in node.body if isinstance(each, ast.FunctionDef) and not is_overload(each)]
        names = {each.name for each in own}
        for base in node.bases:
            inherited = [each for each in self.tree(module).body
                         if isinstance(each, ast.ClassDef) and each.name == getattr(base, 'id', '')]
            for each in inherited:
                own += [method for method in self.members(module, each) if method.name not in names]
        return own


def text_of(node):
    value = getattr(node, 'value', None)
    is_text = isinstance(node, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    return value.value if is_text else ''


def is_overload(node):
    return any(ast.unparse(each).endswith('overload') for each in node.decorator_list)


def assigned_names(node):
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return []
    return [getattr(each, 'id', '') for each in getattr(node, 'targets', None) or [node.target]]


def names_of_all(tree):
    for node in tree.body:
        if '__all__' in assigned_names(node):
            return ast.literal_eval(node.value)
    raise LookupError('no __all__')


def own_nodes(node):
    """What a function's body holds, without functions inside."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield child
            yield from own_nodes(child)


def function(name, node):
    given = node.args
    parameters = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    parameters += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    parameters = [each for each in parameters if each not in ('self', 'cls')]
    written = re.sub(r'^(self|cls)(, |$)', '', ast.unparse(given))
    decorators = {ast.unparse(each) for each in node.decorator_list}
    body = list(own_nodes(node))
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in body)
    return Entry(name, 'property' if 'property' in decorators else 'function', ast.get_docstring(node) or '',
                 f'{name}({written})', parameters, returns, any(isinstance(each, ast.Raise) for each in body))


def sections_of(doc):
    """{'': the text, 'Args': lines, ...}; lines of a section keep their indentation."""
    found, now = {'': []}, ''
    for line in doc.splitlines():
        begins = SECTION.match(line)
        if begins:
            now = begins[1]
            found[now] = [f'    {begins[2]}'] if begins[2] else []
        else:
            found[now].append(line)
    return found


def items_of(lines):
    """(name, text) of a section's items; name is '' for a line that names none."""
    items = []
    for line in lines:
        begins = ITEM.match(line)
        if begins:
            items.append([begins[1], begins[2]])
        elif line.strip():
            if not items:
                items.append(['', ''])
            items[-1][1] = f'{items[-1][1]} {line.strip()}'.strip()
    return items


def named_in(lines):
    return {word.strip(' *') for name, _ in items_of(lines) for word in name.split(',')}


# ---- what is missing ----

def faults(entries):
    """What the docstrings do not say, a line each."""
    found = []
    for entry in entries:
        found += faults_of(entry)
        found += faults(entry.members)
    return found


def faults_of(entry):
    if not entry.doc.strip():
        return [f'{entry.name}: no docstring']
    sections, found = sections_of(entry.doc), []
    told = named_in(sections.get('Args', []))
    # A class whose arguments are another's says so, and so does one that no program builds.
    if not re.search(r'[Aa]rguments are those of|a program does not build it', entry.doc):
        found += [f'{entry.name}: Args does not name {each}' for each in entry.parameters if each not in told]
    unknown = sorted(told - set(entry.parameters))
    found += [f'{entry.name}: Args names {each}, which it does not take' for each in unknown]
    if entry.kind == 'function':
        if entry.returns and 'Returns' not in sections:
            found.append(f'{entry.name}: it returns a value, and there is no Returns')
        if entry.raises and 'Raises' not in sections:
            found.append(f'{entry.name}: it raises, and there is no Raises')
    return found


# ---- the page ----

def page(entries):
    lines = ['# Python: import elixir {#python_reference}', '',
             'The names of `import elixir`, from their docstrings. docs/python.md is the guide.', '', '[TOC]']
    for entry in entries:
        lines += shown(entry, 2)
    return '\n'.join(lines) + '\n'


def anchor(name):
    return 'py_' + re.sub(r'\W', '_', name)


def shown(entry, level):
    lines = ['', f'{"#" * level} {entry.name} {{#{anchor(entry.name)}}}', '']
    if entry.signature and entry.kind != 'property':
        wrapped = textwrap.wrap(entry.signature, LINE, subsequent_indent='    ', break_long_words=False,
                                break_on_hyphens=False)
        lines += ['```py', *wrapped, '```', '']
    sections = sections_of(entry.doc)
    lines += with_code(sections.pop(''))
    for title, body in sections.items():
        lines += ['', f'**{title}**', '']
        if title == 'Returns':
            lines += [line.strip() for line in body]
        else:
            lines += [f'* `{name}`: {text}' if name else text for name, text in items_of(body)]
    for member in entry.members:
        lines += shown(member, level + 1)
    return lines


def with_code(lines):
    """Lines that stand deeper become a listing."""
    made, code = [], False
    for at, line in enumerate(lines):
        deeper = line.startswith('    ')
        if not line.strip() and code and any(
                rest.strip() and rest.startswith('    ') for rest in lines[at + 1:at + 2]):
            deeper = True
        if deeper != code:
            made.append('```py' if deeper else '```')
            code = deeper
        made.append(line[4:] if deeper else line)
    return made + ['```'] * code


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--check', action='store_true', help='print what the docstrings do not say')
    parser.add_argument('--package', default=PACKAGE, help='the folder of the package')
    options = parser.parse_args()
    package = Package(options.package)
    entries = package.public() + package.programs()
    if not options.check:
        print(page(entries), end='')
        return
    found = faults(entries)
    print('\n'.join(found) or 'nothing is missing')
    sys.exit(bool(found))


if __name__ == '__main__':
    main()
