#!/usr/bin/env python3
"""Writes docs/flags.md, the flags of every program, from what the programs' own --help prints.

  scripts/flag_reference.py            print the page
  scripts/flag_reference.py --write    write docs/flags.md
  scripts/flag_reference.py --check    exit 1 if docs/flags.md is old
"""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs' / 'flags.md'

HEAD = """# Flags

`scripts/flag_reference.py --write` makes this page from what each program's `--help` prints. For explanations read the
page that each section names.
"""

# Program, its subcommand, and the page that explains it.
COMMANDS = (
    ('elixir-train', '', 'elixir_train.md'),
    ('elixir-generate', '', 'elixir_generate.md'),
    ('elixir-run', '', 'ranks.md'),
    ('elixird', '', 'elixird.md'),
    ('elixirctl', '', 'planner.md'),
    ('elixirctl', 'status', 'elixird.md'),
    ('elixirctl', 'doctor', 'doctor.md'),
    ('elixirctl', 'plan', 'planner.md'),
    ('elixirctl', 'estimate', 'planner.md'),
    ('elixirctl', 'profile', 'planner.md'),
    ('elixirctl', 'probe', 'planner.md'),
    ('elixirctl', 'simulate-cache', 'planner.md'),
    ('elixirctl', 'checkpoint', 'checkpoints.md'),
    ('elixirctl', 'checkpoint list', 'checkpoints.md'),
    ('elixirctl', 'checkpoint verify', 'checkpoints.md'),
    ('elixirctl', 'checkpoint estimate', 'checkpoints.md'),
    ('elixirctl', 'checkpoint export', 'checkpoints.md'),
    ('elixirctl', 'checkpoint import', 'checkpoints.md'),
)


def page(programs: pathlib.Path) -> str:
    """The page's text. `programs`: the folder of the programs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith('ELIXIR')}
    parts = [HEAD]
    for program, subcommand, explained in COMMANDS:
        words = [str(programs / program), *subcommand.split(), '--help']
        text = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
        lines = '\n'.join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f'## {program} {subcommand}'.rstrip() +
                     f'\n\nExplained in [{explained}]({explained}).\n\n```text\n{lines}\n```\n')
    return '\n'.join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--bin', type=pathlib.Path, default=ROOT / 'build' / 'release' / 'bin',
                        help='the folder of the programs (default: build/release/bin)')
    parser.add_argument('--write', action='store_true', help='write docs/flags.md')
    parser.add_argument('--check', action='store_true', help='exit 1 if docs/flags.md is old')
    options = parser.parse_args()
    text = page(options.bin)
    if options.write:
        PAGE.write_text(text, encoding='utf-8')
    elif options.check:
        if not PAGE.exists() or PAGE.read_text(encoding='utf-8') != text:
            print('docs/flags.md is old: run scripts/flag_reference.py --write', file=sys.stderr)
            return 1
    else:
        print(text, end='')
    return 0


if __name__ == '__main__':
    sys.exit(main())
