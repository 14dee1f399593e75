"""A training over two nodes, an elixird on each: the weights are those of one node."""

import json
import os
import re
import unittest

import harness
import two_nodes
from harness import TINY, program

REASON = two_nodes.unavailable()


@unittest.skipIf(REASON, REASON)
class TwoNodesTraining(harness.ElixirTest):
    def setUp(self):
        super().setUp()
        self.nodes = two_nodes.TwoNodes()

    def tearDown(self):
        try:
            super().tearDown()
        finally:
            self.nodes.close()

    def start_both(self, *command, environments=({}, {})):
        started = []
        for node in (0, 1):
            flags = ['--nnodes', '2', '--node-rank', str(node), '--master-addr', 'node-a',
                     '--master-port', '29535', '--runtime-dir',
                     os.path.join(self.folder, f'run-{node}')]
            started.append(self.start(
                self.nodes.command(node, *self.launch(2, *command, flags=flags)),
                environment=environments[node]))
        return started

    def test_four_ranks_on_two_nodes_train_what_four_on_one_do(self):
        train = [program('train_gpt2'), *TINY, '--steps', '4', '--checksum']
        plain = self.succeed(self.launch(4, *train), '--exchange', 'collective').checksum
        for flags in (['--update', 'early'], ['--gpu-state-share', '0.5', '--update', 'deferred']):
            with self.subTest(flags=flags):
                first, second = self.start_both(*train, *flags)
                finished = first.wait()
                self.assertEqual(finished.exit_code, 0, str(finished))
                self.assertEqual(second.wait().exit_code, 0, str(second.wait()))
                self.assertEqual(finished.checksum, plain)
        self.assert_no_memory()

    def machine(self, name, **rates):
        """A file of a node of two emulated GPUs."""
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as file:
            json.dump({'version': 2, 'gpus': 2, 'gpu_memory_bytes': 1 << 30, 'overhead_bytes': 0,
                       'host_memory_bytes': 1 << 33, 'd2h_gb_s': 4, 'h2d_gb_s': 4, 'joint_gb_s': 0,
                       'g2g_gb_s': 2, 'gpu_update_gparam_s': 1, 'cpu_update_gparam_s': 1,
                       'dram_gb_s': 10, 'gpu_tflops': 0.1, 'gpu_fp32_tflops': 0.1, 'device': 'cpu',
                       **rates}, file)
        return path

    def test_two_unlike_nodes_agree_on_the_plan_of_the_slower(self):
        """Whichever is node 0: the plan is the same, and not that of the faster one."""
        slower = self.machine('slower.json', h2d_gb_s=0.05, internode_gb_s=1)
        faster = self.machine('faster.json', cpu_update_gparam_s=50, internode_gb_s=2)
        train = [program('train_gpt2'), '--batch', '2', '--seq', '32', '--threads', '1', '--steps', '2',
                 '--checksum', '--gpu-memory', '16MiB']
        predicted, checksums = [], set()
        for files in ((slower, faster), (faster, slower), (faster, faster)):
            # Each node has a cache of its own, too: nothing but the network joins them.
            started = self.start_both(*train, environments=[
                {'ELIXIR_MACHINE_FILE': path, 'XDG_CACHE_HOME': os.path.join(self.folder, f'cache{node}')}
                for node, path in enumerate(files)])
            first, second = (running.wait() for running in started)
            self.assertEqual((first.exit_code, second.exit_code), (0, 0), f'{first}\n{second}')
            self.assertIn('event=nodes_agreed', first.errors)
            predicted.append(re.search(r'predicted +(.*)', first.output).group(1))
            checksums.add(first.checksum)
        self.assertEqual(predicted[0], predicted[1])
        self.assertNotEqual(predicted[0], predicted[2])
        self.assertEqual(len(checksums), 1)
        self.assert_no_memory()

    def test_a_plan_of_two_nodes_is_carried_out_on_two_nodes(self):
        """As elixirctl plan --gpus-per-node makes it; the weights are those of one node."""
        machine = self.machine('node.json')
        plan = os.path.join(self.folder, 'plan.json')
        self.succeed(program('elixirctl'), 'plan', '--model', 'gpt2-nano', '--batch', '2', '--seq',
                     '32', '--dtype', 'fp32', '--no-checkpoint-activations', '--machine', machine,
                     '--gpus', '4', '--gpus-per-node', '2', '--internode-gb-s', '0.1', '--output',
                     plan)
        with open(plan, encoding='utf-8') as file:
            written = json.load(file)
        self.assertEqual((written['gpus'], written['nodes'], written['exchange']),
                         (4, 2, 'collective'))
        train = [program('train_gpt2'), '--batch', '2', '--seq', '32', '--threads', '1', '--steps',
                 '4', '--checksum']
        plain = self.succeed(self.launch(4, *train), '--exchange', 'collective').checksum
        first, second = self.start_both(*train, '--plan', plan)
        finished = first.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(second.wait().exit_code, 0, str(second.wait()))
        self.assertEqual(finished.checksum, plain)
        # Sums of several passes take memory that this plan does not have.
        refused = self.run_program(self.launch(4, *train, '--plan', plan, '--accumulate', '2'))
        self.assertEqual(refused.exit_code, 2, str(refused))
        self.assertIn('--accumulate 2', refused.errors)
        self.assert_no_memory()


if __name__ == '__main__':
    harness.main()
