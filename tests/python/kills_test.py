"""Python programs that are killed at exact places, again and again, under `elixir-run --max-restarts`: they end with
the hash of the undisturbed run. Trainer is unmodified, and elixir.save() and elixir.load() serve a loop."""

import json
import os
import random
import subprocess
import sys
import unittest

import python_case
from python_case import BUILD, EVERY_CASE, HERE, PythonCase

python_case.need('transformers', 'accelerate')

STEPS, SAVE_EVERY = 32, 4
AT_SAVES = ('asked', 'written', 'files')  # places that only steps with a save have
POINTS = {'trainer': ('forward', 'backward', 'step', 'elixird', *AT_SAVES),
          'loop': ('forward', 'backward', 'step', 'elixird', 'asked', 'written')}
RUNS = {('trainer', 1): ('files', 'backward'), ('trainer', 2): (),  # by default; at night ten of each
        ('loop', 1): (), ('loop', 2): ('asked', 'step', 'elixird')}


def drawn(chosen, points, ranks):
    """Kills at different steps in their order, so that each comes for sure: a run resumes at or before the last."""
    saves = list(range(3 * SAVE_EVERY, STEPS, SAVE_EVERY))  # there are older checkpoints
    of_saves = chosen.sample(saves, sum(point in AT_SAVES for point in points))
    others = chosen.sample(sorted(set(range(1, STEPS + 1)) - set(of_saves)), len(points) - len(of_saves))
    steps = [(of_saves if point in AT_SAVES else others).pop() for point in points]
    return sorted([step, point, chosen.randrange(ranks)] for step, point in zip(steps, points))


def least_begin(step, point):
    """A run that was killed there resumes at this step or a later one: the newest checkpoint that was waited for."""
    last = (step - 1) // SAVE_EVERY * SAVE_EVERY
    return last if point in AT_SAVES else max(0, last - SAVE_EVERY)


class Kills(PythonCase):
    def run_of(self, folder, how, ranks, kills=(), **flags):
        """What rank 0 says, the restarts that `elixir-run` tells of, and the end of its output."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, 'plan.json'), 'w', encoding='utf-8') as file:
            json.dump(kills, file)
        arguments = [text for name, value in flags.items()
                     for text in ('--' + name.replace('_', '-'), value) if text is not None]
        environment = {name: value for name, value in os.environ.items() if name != 'ELIXIR_RUNTIME_DIR'}
        finished = subprocess.run(
            [os.path.join(BUILD, 'bin', 'elixir-run'), '-n', str(ranks), '--max-restarts', str(len(kills)),
             '--runtime-dir', os.path.join(folder, 'elixird'), '--daemon-arg=--no-bandwidth-probe', '--no-prefix',
             sys.executable, '-B', os.path.join(HERE, 'kills_program.py'), how, folder, *arguments],
            capture_output=True, text=True, check=False, env=environment)
        text = finished.stdout[-2000:] + finished.stderr[-6000:]
        self.assertEqual(finished.returncode, 0, text)
        (line,) = [line for line in finished.stdout.splitlines() if line.startswith('told ')]
        return json.loads(line[len('told '):]), finished.stderr.count('starting all'), text

    def test_killed_runs_end_with_the_undisturbed_hash(self):
        seed = random.randrange(1 << 30)
        print(f'seed {seed}')
        chosen = random.Random(seed)
        for (how, ranks), points in RUNS.items():
            if not points and not EVERY_CASE:
                continue
            with self.subTest(how=how, ranks=ranks, seed=seed):
                whole, restarts, _ = self.run_of(os.path.join(self.folder, f'whole-{how}-{ranks}'), how, ranks)
                self.assertEqual(restarts, 0)
                self.assertEqual(whole['steps'], STEPS)
                plan = drawn(chosen, (POINTS[how] * 2)[:10] if EVERY_CASE else points, ranks)
                print(how, ranks, plan)
                folder = os.path.join(self.folder, f'killed-{how}-{ranks}')
                told, restarts, text = self.run_of(folder, how, ranks, plan)
                with open(os.path.join(folder, 'kills'), encoding='utf-8') as file:
                    self.assertEqual([line.split() for line in file], [[str(word) for word in kill] for kill in plan])
                self.assertEqual(restarts, len(plan), text)
                self.assertEqual(told, whole, text)
                with open(os.path.join(folder, 'begins'), encoding='utf-8') as file:
                    begins = [int(line) for line in file]
                self.assertEqual(begins[0], 0)
                for begin, (step, point, _) in zip(begins[1:], plan):
                    self.assertGreaterEqual(begin, least_begin(step, point), (begins, plan))

    def test_the_hash_shows_states_that_were_not_resumed(self):
        """The control: a run that takes the weights alone ends with another hash."""
        folder = os.path.join(self.folder, 'run')
        whole, _, _ = self.run_of(folder, 'loop', 1)
        middle = os.path.join(folder, 'run', 'step-12')
        for flags, equal in (({}, True), ({'skip_states': None}, False)):
            other = os.path.join(self.folder, f'resumed-{equal}')
            resumed, _, _ = self.run_of(other, 'loop', 1, resume=middle, **flags)
            self.assertEqual(resumed == whole, equal)


if __name__ == '__main__':
    unittest.main()
