"""How a step ends, as a user asks for it: when chunks are updated, clipping, loss scales,
accumulation, strategies; and what --jsonl says of it."""

import json
import os
import time

import harness
from harness import NIGHTLY, TINY, program

INVALID_ARGUMENT = 2
STRATEGIES = ('ddp', 'zero1', 'zero2', 'zero3', 'rcache-max', 'rcache-min')


class UpdatesTest(harness.ElixirTest):
    def train(self, ranks, *flags, steps=4, batch=1):
        return self.succeed(self.launch(ranks, program('train_gpt2')), '--batch', str(batch), '--seq',
                            '32', '--threads', '1', '--steps', str(steps), '--checksum', flags)

    def lines(self, ranks, *flags, **how):
        """The checksum, and the lines of --jsonl."""
        path = os.path.join(self.folder, 'steps.jsonl')
        checksum = self.train(ranks, '--jsonl', path, flags, **how).checksum
        with open(path, encoding='utf-8') as file:
            return checksum, [json.loads(line) for line in file]


class Updates(UpdatesTest):
    def test_when_chunks_are_updated_changes_no_bit(self):
        for ranks, dtype in ((1, 'bf16'), (2, 'fp32'), *([(1, 'fp32'), (2, 'bf16')] if NIGHTLY else [])):
            with self.subTest(ranks=ranks, dtype=dtype):
                sums = {when: self.train(ranks, '--dtype', dtype, '--update', when).checksum
                        for when in ('auto', 'early', 'deferred', 'immediate', 'sync')}
                self.assertEqual(len(set(sums.values())), 1, sums)
        self.assert_nothing_left()

    def test_early_updates_are_told_and_clipping_drops_them_without_a_trace(self):
        clip = ['--update', 'early', '--spare-slots', '3', '--clip-norm']
        never, steps = self.lines(2, clip, '1e9', steps=6)
        self.assertEqual(never, self.train(2, '--update', 'sync', steps=6).checksum)
        for step in steps:
            self.assertLessEqual(step['early_chunks'], 3)
            self.assertEqual(step['early_hits'], step['early_chunks'])
        self.assertGreater(sum(step['early_chunks'] for step in steps), 0)
        always, steps = self.lines(2, clip, '1e-3', steps=6)
        self.assertEqual(always, self.train(2, '--update', 'sync', '--clip-norm', '1e-3',
                                            steps=6).checksum)
        self.assertEqual([step['early_hits'] for step in steps], 6 * [0])
        self.assertGreater(sum(step['early_chunks'] for step in steps), 0)
        _, steps = self.lines(1, '--update', 'deferred')
        self.assertEqual([step['early_chunks'] for step in steps], 4 * [0])

    def test_spare_slots_serve_early_updates_alone(self):
        train = self.launch(1, program('train_gpt2'))
        refused = self.run_program(train, TINY, '--steps', '1', '--update', 'sync', '--spare-slots', '2')
        self.assertEqual(refused.exit_code, INVALID_ARGUMENT, str(refused))
        self.assertIn('--update early', refused.errors)
        refused = self.run_program(train, TINY, '--steps', '1', '--spare-slots', '-1')
        self.assertEqual(refused.exit_code, INVALID_ARGUMENT, str(refused))

    def test_accumulated_batches_are_those_of_one_plan_and_another(self):
        flags = ['--accumulate', '2']
        for ranks in (1, 2):
            plans = [[],
                     ['--rcache-blocks', '3', '--chunk-numel', '1048576'],
                     ['--update', 'immediate']]
            collective = ['--exchange', 'collective'] if ranks == 2 else []
            plans += [[collective, '--update', 'sync', '--gpu-state-share', '0.5'],
                      [collective, '--update', 'immediate', '--no-offload']]
            sums = [self.train(ranks, flags, plan, batch=2).checksum for plan in plans]
            self.assertEqual(len(set(sums)), 1, f'{ranks} ranks: {list(zip(plans, sums))}')

    def test_accumulation_sees_the_rows_of_as_many_ranks(self):
        _, accumulated = self.lines(1, '--accumulate', '2', steps=3)
        _, ranks = self.lines(2, steps=3)
        _, fewer = self.lines(1, steps=3)
        for mine, theirs in zip(accumulated, ranks):
            self.assertAlmostEqual(mine['loss'], theirs['loss'], places=4)
        self.assertGreater(abs(fewer[0]['loss'] - ranks[0]['loss']), 1e-4)
        for step in accumulated:
            self.assertAlmostEqual(step['tokens_s'], 2 * 32 / (step['step_ms'] / 1e3), places=3)

    def test_clipping_is_the_same_however_ranks_exchange(self):
        clip = ['--clip-norm', '0.5']
        plain = self.train(2).checksum
        host, steps = self.lines(2, clip)
        self.assertNotEqual(host, plain)
        # Nano's gradients begin longer than that: what is reported is their norm before clipping.
        self.assertGreater(steps[0]['grad_norm'], 0.5)
        collective, theirs = self.lines(2, clip, '--exchange', 'collective')
        self.assertEqual(collective, host)
        self.assertEqual([step['grad_norm'] for step in theirs],
                         [step['grad_norm'] for step in steps])
        self.assertEqual(self.train(2, clip, '--gpu-state-share', '0.5').checksum, host)
        self.assertEqual(self.train(2, '--clip-norm', '1e9').checksum, plain)

    def test_states_on_the_device_take_the_collective_exchange(self):
        launch = self.launch(2, program('train_gpt2'))
        finished = self.succeed(launch, TINY, '--steps', '2', '--accumulate', '2', '--no-offload')
        self.assertIn('exchange=collective', finished.errors)
        refused = self.run_program(launch, TINY, '--steps', '2', '--no-offload', '--exchange', 'host')
        self.assertEqual(refused.exit_code, INVALID_ARGUMENT, str(refused))
        self.assertIn('--exchange collective', refused.errors)


class LossScale(UpdatesTest):
    FP16 = ['--dtype', 'fp16']

    def assert_scale_follows(self, steps):
        """A skipped step changes nothing and halves the scale of those after it."""
        scale = 65536
        for step in steps:
            self.assertEqual(step['loss_scale'], scale)
            self.assertEqual(step['grad_norm'] is None, step['skipped'])
            scale /= 2 if step['skipped'] else 1

    def test_an_overflow_skips_exactly_its_step(self):
        # With the first scales a step may overflow by itself; the sixth has one that does not.
        undisturbed, all_well = self.lines(1, self.FP16, steps=8)
        self.assertFalse(all_well[5]['skipped'])
        overflown, steps = self.lines(1, self.FP16, '--inject-overflow', '0,6', steps=8)
        self.assertEqual([step['skipped'] for step in steps[:6]],
                         [step['skipped'] for step in all_well[:5]] + [True])
        self.assertEqual(steps[6]['loss_scale'], all_well[6]['loss_scale'] / 2)
        self.assertNotEqual(overflown, undisturbed)
        self.assert_scale_follows(steps)
        # What goes into backward is infinite, not what is told.
        self.assertEqual([step['loss'] for step in steps[:6]],
                         [step['loss'] for step in all_well[:6]])

    def test_an_overflow_on_one_rank_skips_the_step_on_all(self):
        for exchange in ('host', 'collective'):
            with self.subTest(exchange=exchange):
                flags = [self.FP16, '--exchange', exchange]
                undisturbed, all_well = self.lines(2, flags, steps=8)
                # With the first scales a step may overflow by itself.
                chosen = next(step['step'] for step in all_well
                              if step['step'] > 2 and not step['skipped'])
                overflown, steps = self.lines(2, flags, '--inject-overflow', f'1,{chosen}', steps=8)
                self.assertTrue(steps[chosen - 1]['skipped'])
                self.assertEqual([step['skipped'] for step in steps[:chosen - 1]],
                                 [step['skipped'] for step in all_well[:chosen - 1]])
                self.assertNotEqual(overflown, undisturbed)
                self.assert_scale_follows(steps)
                self.assert_scale_follows(all_well)

    def test_the_first_step_may_be_the_one(self):
        _, steps = self.lines(1, self.FP16, '--inject-overflow', '0,1')
        self.assertEqual([step['skipped'] for step in steps], [True, False, False, False])

    def test_a_constant_scale_stays(self):
        _, steps = self.lines(1, self.FP16, '--loss-scale', '512')
        self.assertEqual({step['loss_scale'] for step in steps}, {512})
        self.assertEqual({step['skipped'] for step in steps}, {False})

    def test_clipping_skips_an_overflow_in_fp32_too(self):
        _, steps = self.lines(1, '--clip-norm', '1', '--inject-overflow', '0,2')
        self.assertEqual([step['skipped'] for step in steps], [False, True, False, False])
        self.assertEqual({step['loss_scale'] for step in steps}, {1})


class Strategies(UpdatesTest):
    def test_each_with_states_here_and_there_changes_no_bit(self):
        for ranks, exchange in ((1, []), (2, ['--exchange', 'collective'])):
            plain = self.train(ranks, exchange, steps=3).checksum
            for i, strategy in enumerate(STRATEGIES):
                for offload in ('--offload', '--no-offload'):
                    if not NIGHTLY and (offload == '--offload') != ((i + ranks) % 2 == 0):
                        continue
                    with self.subTest(ranks=ranks, strategy=strategy, offload=offload):
                        finished = self.train(ranks, exchange, '--strategy', strategy, offload,
                                              steps=3)
                        self.assertEqual(finished.checksum, plain)
        self.assert_nothing_left()

    def test_what_they_gather(self):
        # With every chunk kept each is gathered once a step; with the fewest, more often. With the
        # states on the device, and one rank, none is.
        gathers = {}
        for strategy in STRATEGIES:
            _, steps = self.lines(1, '--strategy', strategy, '--chunk-numel', '262144')
            gathers[strategy] = steps[-1]['gathers']
        for strategy in ('ddp', 'zero1', 'zero2'):
            self.assertEqual(gathers[strategy], gathers['rcache-max'])
        self.assertEqual(gathers['zero3'], gathers['rcache-min'])
        self.assertGreater(gathers['rcache-min'], 1.5 * gathers['rcache-max'])
        _, steps = self.lines(1, '--strategy', 'zero2', '--no-offload')
        self.assertEqual({(step['gathers'], step['h2d_bytes'], step['d2h_bytes'])
                          for step in steps[1:]}, {(0, 0, 0)})


class Reports(UpdatesTest):
    def test_a_slow_link_binds(self):
        # Nano's 13 MB of gradients take over 0.5 s at 0.025 GB/s, its step far less.
        slow, steps = self.lines(1, '--link-gb-s', '10,0.025')
        self.assertEqual(slow, self.train(1).checksum)
        for step in steps[1:]:
            self.assertGreater(step['d2h_ms'], 500)
            self.assertGreater(step['exposed_ms'], 400)
            self.assertGreater(step['step_ms'], 500)
            self.assertLess(step['compute_ms'], step['d2h_ms'])
            self.assertEqual(step['binding'], 'd2h')
            self.assertLess(step['time_over_limit'], 2)

    def test_the_progress_line_says_what_binds(self):
        finished = self.train(1, '--log-every', '1')
        for step in range(1, 5):
            self.assertRegex(finished.output,
                             rf'(?m)^(\[rank 0\] )?step {step}/4 loss .* bound by \w+ at \d+\.\d+ of its '
                             r'time$')

    def test_a_trace_shows_every_step_on_every_row(self):
        path = os.path.join(self.folder, 'trace.json')
        traced = self.train(2, '--exchange', 'collective', '--trace', path)
        self.assertEqual(traced.checksum, self.train(2, '--exchange', 'collective').checksum)
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

    def test_a_run_that_is_stopped_has_written_every_step(self):
        for flags in ([], ['--exchange', 'collective']):
            with self.subTest(flags=flags):
                path = os.path.join(self.folder, 'steps.jsonl')
                job = self.start(self.launch(2, program('train_gpt2')), TINY, harness.ENDLESS,
                                 '--jsonl', path, flags)
                job.wait_for_text('step 5/')
                job.signal(harness.signal.SIGTERM)
                finished = job.wait()
                self.assertEqual(finished.exit_code, 143, str(finished))
                with open(path, encoding='utf-8') as file:
                    steps = [json.loads(line)['step'] for line in file]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.assertGreaterEqual(len(steps), 5)

    def test_steps_add_up_to_the_run(self):
        begin = time.monotonic()
        _, steps = self.lines(1, steps=10)
        elapsed_ms = 1e3 * (time.monotonic() - begin)
        self.assertLess(sum(step['step_ms'] for step in steps), elapsed_ms)


class BadInput(UpdatesTest):
    def refuse(self, *flags):
        finished = self.run_program(program('train_gpt2'), TINY, '--steps', '2', flags)
        self.assertEqual(finished.exit_code, INVALID_ARGUMENT, str(finished))
        return finished.errors

    def test_flags_say_what_is_possible(self):
        for flags, text in (
                (['--update', 'never'], 'deferred, immediate or sync'),
                (['--clip-norm', '0'], '--clip-norm must be greater than 0, but 0 was given'),
                (['--clip-norm', '-2'], '--clip-norm must be greater than 0, but -2 was given'),
                (['--accumulate', '0'], '--accumulate must be in [1, 65536], but 0 was given'),
                (['--strategy', 'zero9'], "'zero9' is not known; use auto, ddp"),
                (['--strategy', 'ddp', '--rcache-blocks', '4'], 'leave out --rcache-blocks'),
                (['--no-offload', '--gpu-state-share', '0.5'], '--no-offload means'),
                (['--link-gb-s', '0,1'], '--link-gb-s must be'),
                (['--inject-overflow', '0,3'], 'steps from 1 to 2, but 0,3 was given'),
                (['--inject-overflow', '1,1'], 'rank 1 was given, and there are ranks 0 to 0'),
                (['--dtype', 'fp16', '--loss-scale', 'much'], '--loss-scale must be'),
                (['--dtype', 'fp16', '--loss-scale', '1'], 'FP16 without a loss scale'),
                (['--dtype', 'fp16', '--update', 'immediate'], 'a dynamic loss scale'),
                (['--clip-norm', '1', '--update', 'immediate'], '--update early'),
                (['--trace', '/nonexistent/trace'], '/nonexistent/trace')):
            with self.subTest(flags=flags):
                self.assertIn(text, self.refuse(flags))


if __name__ == '__main__':
    harness.main()
