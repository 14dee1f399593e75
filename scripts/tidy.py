#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over every source of the product that does not include LibTorch's headers,
which take minutes a file.

    scripts/tidy.py               what has changed since it was clean: the source, a header of Elixir's
                                  that it includes, its command, .clang-tidy or clang-tidy itself
    scripts/tidy.py --since REV   of these the sources that differ from REV in more than comments and
                                  messages, and for each header that does one source that includes it; all
                                  if REV is not known
    scripts/tidy.py FILE...       these, changed or not

Uses the compile commands of the preset tidy, in which each source is compiled by itself.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys

import figures
import language

ROOT = figures.ROOT
BUILD = os.path.join(ROOT, 'build', 'tidy')
STAMPS = os.path.join(BUILD, 'clean')
JOBS = 2
TOKEN = re.compile(rf'{language.LITERAL}|//.*|\w+|\S')
# Without CUDA no preset compiles it; clang-tidy takes the command of a source like it.
BESIDE = ('kernels/kernels.cpp',)


def configure(preset):
    """Writes the preset's compile_commands.json and lists of tests; sources that came or went are in them."""
    done = subprocess.run(['cmake', '--preset', preset], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'tidy: cmake --preset {preset} failed:\n{done.stdout}{done.stderr}')


def commands():
    """source -> its compile command."""
    with open(os.path.join(BUILD, 'compile_commands.json'), encoding='utf-8') as file:
        entries = json.load(file)
    found = {os.path.relpath(entry['file'], ROOT): entry['command'] for entry in entries}
    return {path: command for path, command in found.items() if not path.startswith(('build/', '..'))}


def key_of(path, command, tree, rules):
    """A hash of all that clang-tidy's answer comes from, but the system's headers."""
    whole = hashlib.sha256(rules.encode() + command.encode())
    for name in sorted(reached(path, tree)):
        whole.update(f'{name}\0{tree.text[name]}\0'.encode())
    return whole.hexdigest()


def reached(path, tree):
    """A source and the headers of Elixir's behind it."""
    seen, open_ = {path}, [path]
    while open_:
        for name in tree.includes.get(open_.pop(), []):
            if name not in seen:
                seen.add(name)
                open_.append(name)
    return seen


def sources_for(changed, sources, tree):
    """The changed sources, and for each changed header that none of them includes the source of its
    name, or the first that includes it."""
    chosen = [path for path in sources if path in changed]
    behind = {path: reached(path, tree) for path in sources}
    for header in sorted(path for path in changed if path.endswith('.h')):
        including = [path for path in sources if header in behind[path]]
        if including and not any(path in chosen for path in including):
            own = header[:-2] + '.cpp'
            chosen.append(own if own in including else including[0])
    return chosen


def code_of(text):
    """The tokens of a source, without comments; those that speak to clang-tidy stay. Of a message the number
    of {} counts."""
    def kept(found):
        is_comment = found[0].startswith(('//', '/*')) and 'NOLINT' not in found[0]
        return ' ' if is_comment else found[0]

    def shortened(found):
        message = language.message_in(found[0])
        return f'"message of {message.count("{")}"' if message else found[0]
    return TOKEN.findall(language.LITERALS.sub(shortened, figures.NO_CODE.sub(kept, text)))


def changed_since(revision):
    """Files that differ from a revision, sources and headers in more than comments and messages; None if git
    does not know the revision."""
    done = subprocess.run(['git', 'diff', '--name-only', revision], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    changed = set()
    for path in done.stdout.splitlines():
        now = os.path.join(ROOT, path)
        if path.endswith(('.h', '.cpp')) and os.path.exists(now):
            before = subprocess.run(['git', 'show', f'{revision}:{path}'], cwd=ROOT, capture_output=True, text=True)
            with open(now, encoding='utf-8') as file:
                if before.returncode == 0 and code_of(before.stdout) == code_of(file.read()):
                    continue
        changed.add(path)
    return changed


def tidy(path):
    """What clang-tidy says of a source, '' when it is clean."""
    done = subprocess.run(['clang-tidy', '-p', BUILD, '--quiet', path], cwd=ROOT, capture_output=True,
                          text=True)
    if done.returncode == 0:
        return ''
    return done.stdout + '\n'.join(line for line in done.stderr.splitlines()
                                   if 'warnings generated' not in line and 'treated as error' not in line)


def main():
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ('-h', '--help'):
        print(__doc__)
        return 0
    since = arguments[1] if arguments[:1] == ['--since'] and len(arguments) == 2 else None
    if since is None and any(argument.startswith('-') for argument in arguments):
        sys.exit('tidy: unknown options; see scripts/tidy.py --help')
    configure('tidy')
    with open(os.path.join(ROOT, '.clang-tidy'), encoding='utf-8') as file:
        rules = file.read()
    rules += subprocess.run(['clang-tidy', '--version'], check=True, capture_output=True, text=True).stdout
    tree = figures.Tree()
    known = {**{path: '' for path in BESIDE}, **commands()}
    os.makedirs(STAMPS, exist_ok=True)
    stamps = {path: os.path.join(STAMPS, key_of(path, command, tree, rules))
              for path, command in sorted(known.items()) if path in tree.text}
    unknown = [path for path, stamp in stamps.items() if not os.path.exists(stamp)]
    changed = changed_since(since) if since else None
    if changed is not None and '.clang-tidy' not in changed:
        wanted = sources_for(changed, sorted(stamps), tree)
        unknown = [path for path in unknown if path in wanted]
    files = (arguments if since is None else []) or unknown
    unclean = 0
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for path, said in zip(files, pool.map(tidy, files)):
            if said:
                unclean += 1
                print(said, flush=True)
            elif path in stamps:
                open(stamps[path], 'w', encoding='utf-8').close()
    print(f'clang-tidy: {len(stamps)} sources, {len(files)} looked at, {unclean} not clean')
    return 1 if unclean else 0


if __name__ == '__main__':
    sys.exit(main())
