"""What elixirctl status and --jsonl tell, against what is known to be true."""

import json
import math
import os
import re
import signal
import socket
import sys
import time

import harness
from harness import ENDLESS, TINY, program, stop, wait_until

DAEMON_FIELDS = {'pid', 'version', 'layout_version', 'uptime_s', 'threads_by_node', 'page_bytes',
                 'bandwidth_gb_s', 'bandwidth_basis'}
JOB_FIELDS = {'id', 'ranks', 'chunks', 'chunk_numel', 'waste_ratio', 'host_bytes',
              'host_bytes_per_param', 'steps_done', 'update_mparam_s', 'update_mparam_s_mean',
              'update_fraction_of_bandwidth', 'queue_depth', 'gathers_last_step',
              'evictions_last_step', 'waiting'}
STEP_FIELDS = ['step', 'loss', 'tokens_s', 'step_ms', 'gathers', 'h2d_bytes', 'd2h_bytes',
               'update_mparam_s', 'early_chunks', 'early_hits', 'swing_chunks', 'grad_norm', 'loss_scale',
               'skipped', 'compute_ms', 'h2d_ms', 'd2h_ms', 'update_ms', 'exposed_ms', 'binding',
               'time_over_limit', 'd2d_bytes', 'recomputed_regions', 'kept_bytes',
               'activation_d2h_bytes', 'activation_h2d_bytes', 'saved_step', 'save_stall_ms']
# Null where nothing asked for it; a name.
NO_NUMBERS = {'grad_norm', 'binding', 'saved_step', 'save_stall_ms'}
PARAMETERS = 3257856  # of nano


class StatusTest(harness.ElixirTest):
    def entry(self):
        entries = self.status()['jobs']
        self.assertLessEqual(len(entries), 1)
        return entries[0] if entries else None

    def end(self, job):
        job.signal(15)
        self.assertEqual(job.wait().exit_code, 143)

    def test_every_field_of_the_contract(self):
        # With its measurement of the memory, which other tests leave out.
        job = self.start(program('elixir-run'), '-n', '2', program('train_gpt2'), TINY, ENDLESS)
        job.wait_for_text('step 3/')
        status = self.status()

        daemon = status['daemon']
        self.assertLessEqual(DAEMON_FIELDS, daemon.keys())
        self.assertEqual([daemon['pid']], self.processes('elixird'))
        self.assertRegex(daemon['version'], r'^\d+\.\d+\.\d+$')
        self.assertTrue(0 < daemon['uptime_s'] < 3600)
        self.assertTrue(daemon['threads_by_node'])
        for node, threads in daemon['threads_by_node'].items():
            self.assertTrue(node.isdigit())
            self.assertTrue(0 <= threads <= os.cpu_count())
        self.assertGreaterEqual(sum(daemon['threads_by_node'].values()), 1)
        self.assertIn(daemon['page_bytes'], (4096, 2 << 20))
        self.assertGreater(daemon['bandwidth_gb_s'], 0.1)
        self.assertIn(daemon['bandwidth_basis'], ('measured', 'disturbed', 'update'))

        self.assertEqual(len(status['jobs']), 1)
        entry = status['jobs'][0]
        self.assertLessEqual(JOB_FIELDS, entry.keys())
        self.assertNotIn('sessions', [*status, *entry])  # the same ranks twice
        self.assertEqual(entry['ranks'], 2)
        self.assertEqual(sorted(entry['pids']), sorted(self.processes('train_gpt2')))
        slots = entry['chunks'] * entry['chunk_numel']
        self.assertAlmostEqual(entry['waste_ratio'], slots / PARAMETERS - 1, places=6)
        self.assertAlmostEqual(entry['host_bytes_per_param'], entry['host_bytes'] / PARAMETERS)
        self.assertGreater(entry['update_mparam_s'], 0)
        self.assertGreater(entry['update_mparam_s_mean'], 0)
        fraction = entry['update_fraction_of_bandwidth']
        self.assertTrue(fraction is None or 0 < fraction <= 1)  # None: faster, in the caches
        self.assertTrue(0 <= entry['queue_depth'] <= entry['chunks'])
        self.assertGreater(entry['evictions_last_step'], 0)

        steps = entry['steps_done']
        wait_until(lambda: self.entry()['steps_done'] > steps + 2, 'steps_done grows')
        self.end(job)

    def assert_waits_for_a_stopped_rank(self, exchange, what):
        """Rank 1 is stopped in the midst of steps; rank 0 waits for `what`."""
        job = self.start(self.launch(2, program('train_gpt2')), TINY, ENDLESS, '--exchange', exchange)
        job.wait_for_text('step 3/')
        stopped, = self.processes('train_gpt2', RANK='1')
        stop(stopped)

        def waiting():
            return next((wait for wait in self.entry()['waiting']
                         if wait['rank'] == 0 and re.fullmatch(what, wait['for'])), None)

        first = wait_until(waiting, f'rank 0 waits: {what}')
        wait_until(lambda: (waiting() or first)['since_s'] > first['since_s'] + 1, 'since_s grows')
        logged = rf"event=waiting job='.*' rank=0 for='{what}' seconds=\d\d$"
        wait_until(lambda: re.search(logged, self.log(), re.M), 'the log says so')
        self.assertRegex(self.succeed(program('elixirctl'), 'status').output, f'rank 0 for {what}')
        steps = self.entry()['steps_done']
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: self.entry()['steps_done'] > steps + 2, 'it goes on')
        self.end(job)

    def test_who_waits_for_the_post_of_a_stopped_rank(self):
        self.assert_waits_for_a_stopped_rank('host', r'step \d+ of rank 1')

    def test_who_waits_for_a_stopped_rank_in_a_collective(self):
        # Stopped between its last collective of a step and its post, it is the post that is missing.
        self.assert_waits_for_a_stopped_rank('collective', r'(?:rank 1 in a collective|step \d+ of rank 1)')

    def test_a_bandwidth_measured_beside_other_work_is_said(self):
        hogs = [self.start(sys.executable, '-c', 'while True: pass')
                for _ in range(2 * os.cpu_count())]

        def disturbed():
            daemon = self.start(program('elixird'))
            daemon.wait_for_text('event=listening')
            if re.search('event=bandwidth_disturbed gb_s=.* workers=.*idle', daemon.errors):
                return daemon
            return self.stop_elixird(daemon)

        daemon = wait_until(disturbed, 'the processors are busy')
        self.assertEqual(self.status()['daemon']['bandwidth_basis'], 'disturbed')
        self.assertRegex(self.succeed(program('elixirctl'), 'status').output, 'at least .* GB/s')
        self.stop_elixird(daemon)
        for hog in hogs:
            hog.signal(9)
            hog.wait()

    def test_who_listens_and_does_not_answer_is_named(self):
        daemon = self.start_elixird()
        stop(daemon.pid)
        finished = self.run_program(program('elixirctl'), 'status')
        self.assertEqual(finished.exit_code, 10, str(finished))
        self.assertIn(f'kill -CONT {daemon.pid}', finished.errors)
        daemon.signal(18)

        def turned_away():
            idle = [socket.socket(socket.AF_UNIX) for _ in range(64)]
            for one in idle:
                one.connect(os.path.join(self.runtime, 'status.sock'))
            finished = self.run_program(program('elixirctl'), 'status')
            for one in idle:
                one.close()
            return finished if finished.exit_code == 3 else None

        finished = wait_until(turned_away, 'the status socket is full')
        self.assertRegex(finished.errors, rf'pid {daemon.pid}\) closes new connections')
        self.stop_elixird(daemon)

    def test_gathers_are_those_of_the_formula_in_status_and_jsonl(self):
        path, blocks = os.path.join(self.folder, 'steps.jsonl'), 4
        job = self.start(self.launch(1, program('train_gpt2')), TINY, ENDLESS, '--rcache-blocks',
                         str(blocks), '--jsonl', path)
        job.wait_for_text('step 3/')
        entry = self.entry()
        with open(path, encoding='utf-8') as file:
            steps = [json.loads(line) for line in file if line.endswith('\n')]
        self.end(job)
        self.assertEqual(entry['chunks'], 13)
        # From the second step on the rCache knows what comes next. The tied embedding stands at both
        # ends of forward, so a step is mirrored and 2n - b holds.
        self.assertEqual(entry['gathers_last_step'], 2 * entry['chunks'] - blocks)
        self.assertEqual({step['gathers'] for step in steps[2:]}, {entry['gathers_last_step']})
        for step in steps[2:]:
            self.assertEqual(step['h2d_bytes'], step['gathers'] * entry['chunk_numel'] * 4)

    def test_one_json_line_a_step(self):
        path = os.path.join(self.folder, 'steps.jsonl')
        before = time.monotonic()
        self.succeed(self.launch(2, program('train_gpt2')), TINY, '--steps', '7', '--jsonl', path)
        elapsed_ms = 1e3 * (time.monotonic() - before)
        with open(path, encoding='utf-8') as file:
            steps = [json.loads(line) for line in file]
        self.assertEqual([step['step'] for step in steps], list(range(1, 8)))
        for step in steps:
            self.assertEqual(list(step), STEP_FIELDS)
            self.assertTrue(all(math.isfinite(value) for field, value in step.items()
                                if field not in NO_NUMBERS))
            self.assertIsNone(step['grad_norm'])
            self.assertEqual((step['loss_scale'], step['skipped'], step['d2d_bytes']), (1, False, 0))
            self.assertIn(step['binding'], ('compute', 'h2d', 'd2h', 'update'))
            self.assertGreaterEqual(step['time_over_limit'], 1)
            self.assertGreater(step['compute_ms'], 0)
            self.assertTrue(0 < step['loss'] < 10)
            self.assertAlmostEqual(step['tokens_s'], 2 * 32 / (step['step_ms'] / 1e3), places=3)
            self.assertGreater(step['gathers'], 0)
            self.assertEqual(step['d2h_bytes'], PARAMETERS * 4)  # every gradient goes down once
        self.assertLess(sum(step['step_ms'] for step in steps), elapsed_ms)
        self.assertGreater(max(step['update_mparam_s'] for step in steps), 0)


if __name__ == '__main__':
    harness.main()
