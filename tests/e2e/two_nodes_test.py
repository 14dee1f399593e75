"""Ranks on two nodes meet, exchange, and all know it when one node is lost."""

import os
import signal
import time
import unittest

import harness
import two_nodes

RANK = os.path.join(harness.BIN, '..', 'tests', 'collective_rank')
REASON = two_nodes.unavailable()
PEER_LOST = 6


@unittest.skipIf(REASON, REASON)
class TwoNodes(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.nodes = two_nodes.TwoNodes()

    def tearDown(self):
        try:
            super().tearDown()
        finally:
            self.nodes.close()

    def start_node(self, node, *command, master='node-a', environment=None):
        """elixir-run on one of the nodes, with two ranks and an elixird of its own."""
        flags = ['--nnodes', '2', '--node-rank', str(node), '--master-addr', master,
                 '--master-port', '29533',
                 '--runtime-dir', os.path.join(self.folder, f'run-{node}')]
        return self.start(self.nodes.command(node, *self.launch(2, *command, flags=flags)),
                          environment=environment)

    def start_both(self, *command, **how):
        return [self.start_node(node, *command, **how) for node in (0, 1)]

    def finish_both(self, running):
        for node in running:
            finished = node.wait()
            self.assertEqual(finished.exit_code, 0, str(finished))
        return [node.output for node in running]

    # By node-a's name, which is 127.0.1.1 on node-a itself.
    def test_ranks_of_both_nodes_exchange(self):
        outputs = self.finish_both(self.start_both(RANK, '10'))
        for node, output in enumerate(outputs):
            for rank in (2 * node, 2 * node + 1):
                self.assertIn(f'[rank {rank}] connected rank {rank} of 4 at '
                              f'{two_nodes.ADDRESSES[node]}', output)
                self.assertIn(f'[rank {rank}] done', output)

    # It keeps a store of its own, which is not rank 0's.
    def test_torchrun_starts_ranks_on_both_nodes(self):
        torchrun = [os.path.join(harness.REPOSITORY, '.venv', 'bin', 'torchrun'), '--no-python',
                    '--nnodes', '2', '--nproc-per-node', '2', '--master-addr', 'node-a',
                    '--master-port', '29533', '--node-rank']
        running = [self.start(self.nodes.command(node, *torchrun, str(node), RANK, '5'))
                   for node in (0, 1)]
        for output in self.finish_both(running):
            self.assertEqual(output.count('done'), 2, output)

    def test_the_interface_can_be_given(self):
        outputs = self.finish_both(self.start_both(
            RANK, '2', master=two_nodes.ADDRESSES[0],
            environment={'GLOO_SOCKET_IFNAME': 'cable', 'ELIXIR_RENDEZVOUS_TIMEOUT_S': '60'}))
        self.assertIn(f'at {two_nodes.ADDRESSES[1]}', outputs[1])

    def test_a_lost_node_ends_all_ranks_by_name(self):
        running = self.start_both(RANK, '1000000')
        for node in running:
            node.wait_for_text('round 200')
        self.nodes.cut()
        finished = [node.wait() for node in running]
        for node, other in ((0, r'rank [23] \(pid \d+ on node-b\)'),
                            (1, r'rank 0 \(pid \d+ on node-a\)')):
            self.assertEqual(finished[node].exit_code, PEER_LOST, str(finished[node]))
            self.assertRegex(finished[node].all_text, other + ' is lost')

    # What the tests of loss would pass for without a watch that waits.
    def test_a_short_interruption_ends_nothing(self):
        running = self.start_both(RANK, '1000000')
        for node in running:
            node.wait_for_text('connected rank')
        self.nodes.cut()
        time.sleep(2)  # cannot fail by chance: a node is lost after 20 s, which nobody sleeps too long
        before = [node.output.count('round') for node in running]
        self.nodes.mend()
        for node, rounds in zip(running, before):
            harness.wait_until(lambda: node.output.count('round') > rounds + 4, 'more rounds')
            self.assertFalse(node.ended())
        for node in running:
            node.signal(signal.SIGTERM)
        for node in running:
            node.wait()

    def test_a_rank_killed_on_one_node_ends_those_on_the_other(self):
        running = self.start_both(RANK, '1000000')
        for node in running:
            node.wait_for_text('connected rank')
        victim = self.processes('collective_rank', RANK='3')[0]
        os.kill(victim, signal.SIGKILL)
        finished = [node.wait() for node in running]
        self.assertEqual(finished[0].exit_code, PEER_LOST, str(finished[0]))
        self.assertIn(f'rank 3 (pid {victim} on node-b) died', finished[0].all_text)
        self.assertEqual(finished[1].exit_code, 128 + signal.SIGKILL, str(finished[1]))


if __name__ == '__main__':
    harness.main()
