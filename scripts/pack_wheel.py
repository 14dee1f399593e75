#!/usr/bin/env python3
"""Packs `import elixir` of a build into a wheel, for the torch and the Python that the build has.

    scripts/pack_wheel.py [--build build/release] [--out build/wheels]

`pip install --no-build-isolation .` builds the same from the sources. Prints the wheel's path.
"""

import argparse
import base64
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))


def project():
    with open(os.path.join(ROOT, 'pyproject.toml'), 'rb') as file:
        return tomllib.load(file)['project']


def metadata(of):
    lines = ['Metadata-Version: 2.4', f'Name: {of["name"]}', f'Version: {of["version"]}', f'Summary: {of["description"]}',
             f'Requires-Python: {of["requires-python"]}', f'License-Expression: {of["license"]}']
    for extra, needs in of['optional-dependencies'].items():
        lines += [f'Provides-Extra: {extra}', *(f'Requires-Dist: {need}; extra == "{extra}"' for need in needs)]
    return '\n'.join(lines) + '\n'


def tag_of(folder):
    """That of the compiled part: cp311-cp311-linux_x86_64."""
    (part,) = glob.glob(os.path.join(folder, 'elixir', 'lib', 'torch2*', '_C.*.so'))
    python, machine = re.search(r'cpython-(\d+)-(\w+)-linux', os.path.basename(part)).groups()
    return f'cp{python}-cp{python}-linux_{machine}'


def make_small(folder):
    """A wheel has no links, and nobody debugs it."""
    for link in glob.glob(os.path.join(folder, 'elixir', 'lib', '*', '*.so.*')):
        if os.path.islink(link):
            os.replace(os.path.realpath(link), link)
    programs = glob.glob(os.path.join(folder, 'elixir', 'bin', '*'))
    subprocess.run(['strip', *programs], check=True)


def write_wheel(folder, out):
    of = project()
    name = of['name'].replace('-', '_')
    info = os.path.join(folder, f'{name}-{of["version"]}.dist-info')
    os.mkdir(info)
    tag = tag_of(folder)
    for file, text in (('METADATA', metadata(of)), ('WHEEL', 'Wheel-Version: 1.0\nGenerator: elixir\n'
                                                    f'Root-Is-Purelib: false\nTag: {tag}\n')):
        with open(os.path.join(info, file), 'w', encoding='utf-8') as opened:
            opened.write(text)
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f'{name}-{of["version"]}-{tag}.whl')
    record = []
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as wheel:
        for place, _, files in sorted(os.walk(folder)):
            for file in sorted(files):
                whole = os.path.join(place, file)
                inside = os.path.relpath(whole, folder)
                with open(whole, 'rb') as opened:
                    digest = base64.urlsafe_b64encode(hashlib.sha256(opened.read()).digest()).rstrip(b'=').decode()
                record.append(f'{inside},sha256={digest},{os.path.getsize(whole)}')
                wheel.write(whole, inside)
        last = os.path.relpath(os.path.join(info, 'RECORD'), folder)
        wheel.writestr(last, '\n'.join([*record, f'{last},,']) + '\n')
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--build', default=os.path.join(ROOT, 'build', 'release'), help='a build with `import elixir`')
    parser.add_argument('--out', default=os.path.join(ROOT, 'build', 'wheels'), help='the folder of the wheel')
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='elixir-wheel-')
    try:
        done = subprocess.run(['cmake', '--install', options.build, '--component', 'python', '--strip', '--prefix', folder],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0 or not os.path.isdir(os.path.join(folder, 'elixir')):
            sys.exit(f'pack_wheel: {options.build} has no `import elixir`: scripts/build.sh builds it\n{done.stderr}')
        make_small(folder)
        print(write_wheel(folder, options.out))
    finally:
        shutil.rmtree(folder)


if __name__ == '__main__':
    main()
