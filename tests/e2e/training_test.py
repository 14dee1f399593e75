"""Training as a user asks for it: each flag reaches the plan or the steps, none that only moves memory
changes a bit, and --jsonl, --trace and status tell what happened. tests/client/no_bit_changes_test.cpp has the
bits of every plan."""

import json
import os
import time

import harness
from harness import TINY, program

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 2, 3, 5

# By ranks: flags, and what the line about the plan says of them.
PLANS = {
    1: ((['--update', 'sync'], 'update=sync'),
        (['--update', 'immediate'], 'update=immediate'),
        (['--update', 'early', '--spare-slots', '3'], 'update=early spare_slots=3'),
        (['--chunk-numel', '1048576', '--rcache-blocks', '3'], 'chunk_numel=1048576 .* rcache_blocks=3 '),
        (['--strategy', 'zero3'], 'rcache_blocks=2 '),
        (['--swing-stride', '2'], 'swing_chunks=[1-9]'),
        (['--strategy', 'zero2', '--no-offload'], r'chunks=(\d+) gpu_chunks=\1 ')),
    2: ((['--exchange', 'host'], 'exchange=host'),
        (['--exchange', 'collective'], 'exchange=collective'),
        (['--gpu-state-share', '0.5', '--update', 'early'], 'gpu_chunks=[1-9].* exchange=collective'),
        (['--no-offload'], r'chunks=(\d+) gpu_chunks=\1 .* exchange=collective')),
}


class TrainingTest(harness.ElixirTest):
    def command(self, ranks, *flags):
        return [*self.launch(ranks, program('train_gpt2')), *TINY, '--checksum', *flags]

    def train(self, ranks, *flags, steps=4):
        return self.succeed(self.command(ranks, '--steps', str(steps), *flags))

    def lines(self, ranks, *flags, steps=4):
        """The checksum, and the lines of --jsonl."""
        path = os.path.join(self.folder, 'steps.jsonl')
        checksum = self.train(ranks, '--jsonl', path, *flags, steps=steps).checksum
        with open(path, encoding='utf-8') as file:
            return checksum, [json.loads(line) for line in file]


class Plans(TrainingTest):
    def test_each_flag_reaches_the_plan_and_changes_no_bit(self):
        plain = {ranks: self.train(ranks).checksum for ranks in PLANS}
        self.assertNotEqual(plain[1], plain[2])
        for ranks, plans in PLANS.items():
            for flags, says in plans:
                with self.subTest(ranks=ranks, flags=flags):
                    finished = self.train(ranks, *flags)
                    self.assertRegex(finished.errors, f'event=plan .*{says}')
                    self.assertEqual(finished.checksum, plain[ranks])
        self.assert_nothing_left()

    def test_torchruns_store_serves_the_rendezvous(self):
        ours = self.train(2)
        daemon = self.start_elixird()
        torchrun = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'torchrun')
        theirs = self.succeed(torchrun, '--no-python', '--nproc-per-node', '2', '--master-port',
                              str(harness.free_port()), program('train_gpt2'), TINY, '--steps', '4', '--checksum',
                              '--exchange', 'collective', limit_s=120)
        self.assertEqual(theirs.checksum, ours.checksum)
        self.stop_elixird(daemon)


class Steps(TrainingTest):
    def test_clipping_and_early_updates_are_told(self):
        plain, _ = self.lines(2)
        early = ['--update', 'early', '--spare-slots', '3', '--clip-norm']
        never, steps = self.lines(2, *early, '1e9')
        self.assertEqual(never, plain)
        for step in steps:
            self.assertLessEqual(step['early_chunks'], 3)
            self.assertEqual(step['early_hits'], step['early_chunks'])
        self.assertGreater(sum(step['early_chunks'] for step in steps), 0)
        always, steps = self.lines(2, *early, '1e-3')
        self.assertNotEqual(always, plain)
        self.assertEqual([step['early_hits'] for step in steps], 4 * [0])
        self.assertGreater(steps[0]['grad_norm'], 0.5)  # as it was before clipping

    def test_accumulation_sees_the_rows_of_as_many_ranks(self):
        begin = time.monotonic()
        _, accumulated = self.lines(1, '--accumulate', '2', steps=3)
        elapsed_ms = 1e3 * (time.monotonic() - begin)
        self.assertLess(sum(step['step_ms'] for step in accumulated), elapsed_ms)
        _, ranks = self.lines(2, steps=3)
        _, fewer = self.lines(1, steps=3)
        for mine, theirs in zip(accumulated, ranks):
            self.assertAlmostEqual(mine['loss'], theirs['loss'], places=4)
        self.assertGreater(abs(fewer[0]['loss'] - ranks[0]['loss']), 1e-4)
        for step in accumulated:
            self.assertAlmostEqual(step['tokens_s'], 2 * 32 / (step['step_ms'] / 1e3), places=3)

    def test_an_overflow_on_one_rank_skips_the_step_on_all(self):
        """It changes nothing else, and halves the scale of the steps after it."""
        flags = ['--dtype', 'fp16', '--exchange', 'collective']
        undisturbed, all_well = self.lines(2, *flags, steps=8)
        # With the first scales a step may overflow by itself.
        chosen = next(step['step'] for step in all_well if step['step'] > 2 and not step['skipped'])
        overflown, steps = self.lines(2, *flags, '--inject-overflow', f'1,{chosen}', steps=8)
        self.assertNotEqual(overflown, undisturbed)
        self.assertTrue(steps[chosen - 1]['skipped'])
        # Backward gets the infinite loss; the report has the true one.
        for field, last in (('skipped', chosen - 1), ('loss', chosen)):
            self.assertEqual([step[field] for step in steps[:last]],
                             [step[field] for step in all_well[:last]])
        scale = 65536
        for step in steps:
            self.assertEqual(step['loss_scale'], scale)
            self.assertEqual(step['grad_norm'] is None, step['skipped'])
            scale /= 2 if step['skipped'] else 1

    def test_a_constant_scale_stays(self):
        _, steps = self.lines(1, '--dtype', 'fp16', '--loss-scale', '512')
        self.assertEqual({(step['loss_scale'], step['skipped']) for step in steps}, {(512, False)})


class Reports(TrainingTest):
    def test_a_slow_link_binds(self):
        # Nano's 13 MB of gradients take over 0.5 s at 0.025 GB/s, its step far less.
        path = os.path.join(self.folder, 'slow.jsonl')
        slow = self.train(1, '--link-gb-s', '10,0.025', '--jsonl', path, '--log-every', '1', '--verbose')
        self.assertRegex(slow.output, r'(?m)^step \d/4, .* bound by d2h at \d+\.\d+ of its time$')
        self.assertEqual(slow.checksum, self.train(1).checksum)
        with open(path, encoding='utf-8') as file:
            steps = [json.loads(line) for line in file]
        for step in steps[1:]:
            self.assertGreater(step['d2h_ms'], 500)
            self.assertGreater(step['step_ms'], 500)
        # One step at least: others may use the processors.
        self.assertTrue(any(step['binding'] == 'd2h' and step['compute_ms'] < step['d2h_ms'] and
                            step['exposed_ms'] > 400 and step['time_over_limit'] < 2 for step in steps[1:]), steps)

    def test_a_trace_shows_every_step_on_every_row(self):
        path = os.path.join(self.folder, 'trace.json')
        traced = self.train(2, '--exchange', 'collective', '--trace', path)
        self.assertEqual(traced.checksum, self.train(2).checksum)
        for rank_path in (path, path + '.1'):
            with open(rank_path, encoding='utf-8') as file:
                events = [event for event in json.load(file)['traceEvents'] if event['ph'] == 'X']
            steps = {name: {event['args']['step'] for event in events if event['name'] == name}
                     for name in ('operators', 'copies up', 'copies down', 'all-gather',
                                  'reduce-scatter', 'update')}
            # elixird's last update alone is seen when a step ends.
            self.assertTrue(steps['update'])
            self.assertLessEqual(steps.pop('update'), {1, 2, 3, 4})
            for name, seen in steps.items():
                self.assertLessEqual({2, 3}, seen, name)
                self.assertLessEqual(seen, {1, 2, 3, 4}, name)
            self.assertTrue(all(event['dur'] >= 0 for event in events))

    def test_a_run_that_is_stopped_was_in_status_and_has_written_every_step(self):
        for flags in ([], ['--exchange', 'collective', '--gpu-state-share', '0.5']):
            with self.subTest(flags=flags):
                path = os.path.join(self.folder, 'steps.jsonl')
                job = self.start(self.command(2, *harness.ENDLESS, '--jsonl', path, *flags))
                job.wait_for_text('step 5/')
                entry, = self.status()['jobs']
                self.assertEqual(entry['exchange'], 'collective' if flags else 'host')
                self.assertEqual((entry['ranks'], entry['world_size']), (2, 2))
                self.assertEqual(entry['gpu_chunks'], (entry['chunks'] + 1) // 2 if flags else 0)
                job.signal(harness.signal.SIGTERM)
                finished = job.wait()
                self.assertEqual(finished.exit_code, 143, str(finished))
                with open(path, encoding='utf-8') as file:
                    steps = [json.loads(line)['step'] for line in file]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.assertGreaterEqual(len(steps), 5)


class BadInput(TrainingTest):
    def test_ends_with_its_code_and_says_what_is_possible(self):
        """The command line, a plan, memory, ranks and the device refuse; tests/models has every flag."""
        half = {'RANK': '0', 'WORLD_SIZE': '4', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '2',
                'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(harness.free_port())}
        refusals = [(INVALID_ARGUMENT, ['--update', 'never'], 'deferred, immediate or sync', {}),
                    (INVALID_ARGUMENT, ['--clip-norm', '1', '--update', 'immediate'], '--update early', {}),
                    (INVALID_ARGUMENT, ['--trace', '/nonexistent/trace'], '/nonexistent/trace', {}),
                    (INVALID_ARGUMENT, ['--exchange', 'host'], '--exchange collective', half),
                    (RESOURCE_EXHAUSTED, ['--gpu-memory', '1MiB', '--gpu-state-share', '1'], '1.00 MiB', {})]
        if not os.path.exists('/dev/nvidiactl'):
            refusals.append((UNAVAILABLE, ['--device', 'cuda'], 'driver', {}))
        for exit_code, flags, text, environment in refusals:
            with self.subTest(flags=flags):
                finished = self.run_program(program('train_gpt2'), TINY, '--steps', '2', flags,
                                            environment=environment)
                self.assertEqual(finished.exit_code, exit_code, str(finished))
                self.assertIn(text, finished.errors)


if __name__ == '__main__':
    harness.main()
