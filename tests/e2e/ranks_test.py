"""elixir-run and torchrun: any number of ranks trains; the plan changes no bit of the weights."""

import os
import re

import harness
from harness import NIGHTLY, TEXT, TINY, program

TIMED_OUT = 10
TWO_OPTIMIZERS = os.path.join(harness.BIN, '..', 'tests', 'two_optimizers')

DONE = re.compile(r'(\[rank 0\] )?done: first_loss \d+\.\d+ last_loss \d+\.\d+ steps (\d+) '
                  r'seconds \d+\.\d+')


class Ranks(harness.ElixirTest):
    def train(self, ranks, *flags, steps=4):
        return self.succeed(self.launch(ranks, program('train_gpt2')), TINY, '--steps', str(steps),
                            flags)

    def test_one_two_three_and_five_ranks_start_and_finish(self):
        for ranks in (1, 2, 3, 5):
            with self.subTest(ranks=ranks):
                finished = self.train(ranks)
                self.assertRegex(finished.lines[-1], DONE)
                self.assertEqual(DONE.search(finished.output).group(2), '4')
                self.assert_no_processes(30)  # an elixird without jobs leaves after 10 s
                self.assert_no_sockets()
        self.assert_no_memory()

    def test_a_rank_that_never_comes_is_not_awaited_for_ever(self):
        alone = {'RANK': '0', 'WORLD_SIZE': '2', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '2'}
        finished = self.run_program(program('train_gpt2'), TINY, '--steps', '1', '--ranks-timeout-s', '1',
                                    environment=alone)
        self.assertEqual(finished.exit_code, TIMED_OUT, finished)
        self.assertIn('the other ranks', finished.errors)
        # The second, and what elixird may take to fill the memory of both.
        self.assertRegex(finished.errors, 'waited [12] s for the other ranks')
        self.assert_no_processes()

    def test_two_optimizers_of_a_process_train_as_torchs(self):
        for exchange in ('host', 'collective'):
            with self.subTest(exchange=exchange):
                finished = self.succeed(self.launch(2, TWO_OPTIMIZERS), exchange)
                self.assertEqual(finished.output.count('ranks 2 from torch'), 2, finished)
        self.succeed(TWO_OPTIMIZERS)
        self.stop_idle_elixird()
        self.assert_nothing_left()

    # With one or two chunks a whole model is loaded before a second load could be the last one. (All
    # orders of loads: LoadProtocol.)
    def test_any_number_of_ranks_and_chunks_begins_with_a_folder(self):
        export, saved = os.path.join(self.folder, 'export'), os.path.join(self.folder, 'saved')
        model = [TINY, '--checkpoints', saved, '--export', export]
        self.succeed(program('elixir-train'), *model, '--chunk-numel', '4194304', '--steps', '2')
        whole, default = ['--chunk-numel', '4194304'], []
        cells = [(ranks, chunks, exchange) for ranks in (2, 3) for chunks in (whole, default)
                 for exchange in ('host', 'collective')]
        for ranks, chunks, exchange in cells if NIGHTLY else [cells[i] for i in (0, 3, 4, 7)]:
            # Half of all cells: each two of the four things meet in each way.
            init = not (ranks == 3) ^ (chunks is default) ^ (exchange == 'collective')
            how = ['--init', export, *TEXT] if init else ['--resume', os.path.join(saved, 'step-000000002')]
            with self.subTest(ranks=ranks, chunks=chunks, exchange=exchange, how=how[0]):
                finished = self.succeed(
                    self.launch(ranks, program('elixir-train')), [] if init else TINY, how, chunks,
                    '--exchange', exchange, '--steps', '3')
                self.assertRegex(finished.lines[-1], DONE)
        self.stop_idle_elixird()

    # (Every plan there is: client_training_test.)
    def test_the_plan_changes_no_bit(self):
        plans = [[],
                 ['--chunk-numel', '262144', '--rcache-blocks', '2', '--workers', '1'],
                 ['--chunk-numel', '4194304', '--rcache-blocks', '1', '--workers', '2']]
        sums = [self.train(2, '--checksum', plan).checksum for plan in plans]
        self.assertEqual(len(set(sums)), 1, str(list(zip(plans, sums))))

    def test_other_seeds_rates_and_lengths_give_other_weights(self):
        runs = [self.train(1, '--checksum'), self.train(1, '--checksum', '--seed', '2'),
                self.train(1, '--checksum', '--lr', '0.002'), self.train(1, '--checksum', steps=5)]
        self.assertEqual(len({run.checksum for run in runs}), len(runs))

    def test_torchrun_trains_the_same_weights(self):
        ours = self.train(2, '--checksum')
        daemon = self.start_elixird()
        torchrun = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'torchrun')
        theirs = self.succeed(torchrun, '--no-python', '--nproc-per-node', '2', '--master-port',
                              '0', program('train_gpt2'), TINY, '--steps', '4', '--checksum',
                              limit_s=120)
        self.assertEqual(theirs.checksum, ours.checksum)
        self.assertRegex(theirs.lines[-1], DONE)
        self.assert_daemon_is_free(daemon.pid)
        self.stop_elixird(daemon)


if __name__ == '__main__':
    harness.main()
