"""Pictures are what the commands make, their axes have units, and no text leaves its box or meets another one."""

import os
import re
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'e2e'))
import harness  # noqa: E402
from harness import BIN, REPOSITORY, program  # noqa: E402

SVG = '{http://www.w3.org/2000/svg}'
WIDTH_PER_LETTER = 0.58  # of a sans-serif font's size, on average; wide ones such as Verdana
ABOVE, BELOW = 0.76, 0.24  # the baseline


def box_of(element, size):
    """left, top, right, bottom of a text."""
    x, y = float(element.get('x')), float(element.get('y'))
    size = float(element.get('font-size', size))
    width = WIDTH_PER_LETTER * size * len(element.text)
    left = x - {'start': 0, 'middle': width / 2, 'end': width}[element.get('text-anchor', 'start')]
    return left, y - ABOVE * size, left + width, y + BELOW * size


def rectangle(element):
    x, y, width, height = (float(element.get(name)) for name in ('x', 'y', 'width', 'height'))
    return x, y, x + width, y + height


def inside(inner, outer):
    return (inner[0] >= outer[0] and inner[1] >= outer[1] and inner[2] <= outer[2] and inner[3] <= outer[3])


def overlap(a, b):
    return min(a[2], b[2]) > max(a[0], b[0]) + 1 and min(a[3], b[3]) > max(a[1], b[1]) + 1


def faults_of(svg):
    """A line for each text that leaves the picture or the box that it stands in, or that meets another."""
    root = xml.etree.ElementTree.fromstring(svg)
    canvas = (0, 0, float(root.get('width')), float(root.get('height')))
    size = float(root.get('font-size'))
    texts = [(element.text, box_of(element, size)) for element in root.iter(f'{SVG}text')]
    faults = [f'{words!r} leaves the picture' for words, box in texts if not inside(box, canvas)]
    for group in root.iter(f'{SVG}g'):
        box = rectangle(group.find(f'{SVG}rect'))
        faults += [f'{element.text!r} leaves its box' for element in group.iter(f'{SVG}text')
                   if not inside(box_of(element, size), box)]
    for i, (words, box) in enumerate(texts):
        faults += [f'{words!r} meets {other!r}' for other, theirs in texts[i + 1:] if overlap(box, theirs)]
    return faults


class Pictures(harness.ElixirTest):
    def text_of(self, path):
        with open(path, encoding='utf-8') as file:
            return file.read()

    def test_they_are_what_the_command_makes(self):
        made = os.path.join(self.folder, 'made')
        self.succeed(os.path.join(REPOSITORY, 'scripts', 'pictures.py'), '--output', made, '--bin', BIN)
        names = sorted(os.listdir(made))
        self.assertEqual(names, ['hops.svg', 'memory.svg'])
        for name in names:
            text = self.text_of(os.path.join(made, name))
            self.assertEqual(text, self.text_of(os.path.join(REPOSITORY, 'docs', 'pictures', name)),
                             f'docs/pictures/{name} is old: run scripts/pictures.py')
            self.assertEqual(faults_of(text), [], name)

    def test_of_other_models_and_machines(self):
        memory, time = (os.path.join(self.folder, name) for name in ('memory.svg', 'time.svg'))
        machines = os.path.join(REPOSITORY, 'examples', 'machines')
        for flags in (['--model', 'gpt2-4b', '--machine', os.path.join(machines, 'h100.json')],
                      ['--model', 'opt-125m', '--machine', os.path.join(machines, 'rtx4090.json')],
                      ['--model', 'gpt2-10b', '--machine', os.path.join(machines, 'pcie_8x_rtx4090.json')]):
            with self.subTest(flags=flags):
                self.succeed(program('elixirctl'), 'plan', *flags, '--memory-picture', memory, '--time-picture', time)
                for path, units in (memory, ('>GiB<',)), (time, (' ms<', ' GiB<', 'memory of the GPU')):
                    svg = self.text_of(path)
                    self.assertEqual(faults_of(svg), [], path)
                    for unit in units:
                        self.assertIn(unit, svg)

    def test_what_is_planted_is_found(self):
        picture = self.text_of(os.path.join(REPOSITORY, 'docs', 'pictures', 'hops.svg'))
        self.assertEqual(faults_of(picture), [])
        longer = re.sub(r'(<g class="hop" id="hop3">.*?</text>)', r'\1<text x="700" y="100">' + 'word ' * 30 + '</text>',
                        picture, count=1, flags=re.S)
        self.assertTrue(any('leaves its box' in fault for fault in faults_of(longer)))
        self.assertTrue(any('leaves the picture' in fault for fault in faults_of(longer)))
        twice = picture.replace('</svg>', '<text x="395" y="40">once more</text></svg>')
        self.assertTrue(any('meets' in fault for fault in faults_of(twice)))


if __name__ == '__main__':
    harness.main()
