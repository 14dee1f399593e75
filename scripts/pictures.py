#!/usr/bin/env python3
"""The README's pictures, from the sources and the planner.

  scripts/pictures.py [--output docs/pictures] [--bin build/release/bin]

memory.svg: a GPU's memory over a step, by kind, as `elixirctl plan --memory-picture` draws it.
hops.svg: the six hops of the data path, each with the files whose first line carries it.
"""

import argparse
import os
import re
import subprocess
import sys
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLAN = ['plan', '--model', 'gpt2-4b', '--batch', '4', '--machine', 'examples/machines/rtx4090.json']

BANNER = re.compile(r'// Data path, hop ([1-6]) of 6\b')
# What happens in a hop, and in which process.
HOPS = {
    1: ('trainer', 'gradients leave the GPU', 'one copy per chunk'),
    2: ('trainer', 'they are published', 'with a doorbell'),
    3: ('elixird', 'it checks the step', 'and cuts it into slices'),
    4: ('elixird', 'Adam on CPU threads', 'one pass over the states'),
    5: ('elixird', 'the chunk is published', 'with its last slice'),
    6: ('trainer', 'parameters come up', 'into the rCache, ahead of use'),
}
COLUMNS = {'trainer': 20, 'memory': 390, 'elixird': 660}
ROWS = ((1,), (2, 3), (4,), (5, 6))  # hops that stand beside each other
WIDTH, BOX_WIDTH, TOP, GAP = 980, 300, 60, 16
FIRST_FILE, FILE_HEIGHT = 54, 14  # in a box: the baseline of the first file, the distance of the others


def sources_of_hops():
    listed = subprocess.run(['git', 'ls-files', 'client/*.cpp', 'daemon/*.cpp'], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    found = {hop: [] for hop in HOPS}
    for name in listed:
        with open(os.path.join(ROOT, name), encoding='utf-8') as file:
            banner = BANNER.match(file.readline())
        if banner:
            found[int(banner.group(1))].append(name[:-len('.cpp')])
    missing = [hop for hop, names in found.items() if not names]
    if missing:
        sys.exit(f'no source begins with "// Data path, hop {missing[0]} of 6"')
    return found


def text(x, y, words, **attributes):
    extra = ''.join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x}" y="{y}"{extra}>{escape(words)}</text>'


def arrow(x1, y1, x2, y2):
    return (f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#52606d" stroke-width="2" '
            'marker-end="url(#head)"/>')


def box_height(names):
    return FIRST_FILE + FILE_HEIGHT * (len(names) - 1) + 12


def hops_picture():
    sources = sources_of_hops()
    tops, heights, y = {}, {}, TOP
    for row in ROWS:
        height = max(box_height(sources[hop]) for hop in row)
        for hop in row:
            tops[hop], heights[hop] = y, height
        y += height + GAP
    bottom = y - GAP
    picture_height = bottom + 25
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{picture_height}" '
           f'viewBox="0 0 {WIDTH} {picture_height}" font-family="sans-serif" font-size="13">',
           '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
           '<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker></defs>',
           '<rect width="100%" height="100%" fill="white"/>',
           text(COLUMNS['trainer'], 40, 'trainer, one per GPU', font_weight='bold'),
           text(COLUMNS['memory'], 40, 'shared memory', font_weight='bold'),
           text(COLUMNS['elixird'], 40, 'elixird, one per node', font_weight='bold'),
           f'<rect x="{COLUMNS["memory"]}" y="{TOP}" width="200" height="{bottom - TOP}" rx="6" fill="#f0f4f8" '
           'stroke="#9aa5b1"/>']
    middle = {hop: y + heights[hop] // 2 for hop, y in tops.items()}
    for words, hop in (('gradients, 16 bit', 1), ('records and futex words', 2),
                       ('masters, moments, FP32', 4), ('parameters, 16 bit', 6)):
        y = middle[hop] + 4
        out.append(text(COLUMNS['memory'] + 100, y, words, text_anchor='middle'))
    for hop, names in sources.items():
        who, first, second = HOPS[hop]
        x, y = COLUMNS[who], tops[hop]
        fill = '#d9e8f6' if who == 'trainer' else '#e3f1dc'
        out += [f'<g class="hop" id="hop{hop}"><rect x="{x}" y="{y}" width="{BOX_WIDTH}" '
                f'height="{heights[hop]}" rx="6" fill="{fill}" stroke="#9aa5b1"/>',
                text(x + 12, y + 24, f'{hop}', font_weight='bold', font_size=17),
                text(x + 36, y + 20, first + ','), text(x + 36, y + 36, second)]
        out += [text(x + 36, y + FIRST_FILE + FILE_HEIGHT * line, name, font_size=10.5, fill='#52606d')
                for line, name in enumerate(names)]
        out.append('</g>')
    left, right = COLUMNS['trainer'] + BOX_WIDTH, COLUMNS['elixird']
    into, out_of = COLUMNS['memory'], COLUMNS['memory'] + 200
    ends = {1: (left, into), 2: (left, into), 3: (out_of, right), 4: (right, out_of),
            5: (right, out_of), 6: (into, left)}
    out += [arrow(x1, middle[hop], x2, middle[hop]) for hop, (x1, x2) in ends.items()]
    out.append('</svg>')
    return '\n'.join(out) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', default=os.path.join(ROOT, 'docs', 'pictures'))
    parser.add_argument('--bin', default=os.path.join(ROOT, 'build', 'release', 'bin'))
    arguments = parser.parse_args()
    os.makedirs(arguments.output, exist_ok=True)
    with open(os.path.join(arguments.output, 'hops.svg'), 'w', encoding='utf-8') as file:
        file.write(hops_picture())
    command = [os.path.join(arguments.bin, 'elixirctl'), *PLAN, '--memory-picture',
               os.path.join(os.path.abspath(arguments.output), 'memory.svg')]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)} ended with {done.returncode}: {done.stderr.strip()}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
