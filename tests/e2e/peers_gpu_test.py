"""bench/peers.py --device cuda over the fake CUDA runtime, whose kernels compute nothing: peers run to
their end there, where their losses and states, all zero, are refused."""

import json
import os

import harness

PEERS = os.path.join(harness.REPOSITORY, 'bench', 'peers.py')
PYTHON = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'python')


class PeersOnGpu(harness.ElixirTest):
    def errors(self, *flags):
        self.environment['TMPDIR'] = self.folder
        finished = self.run_program(
            'python3', '-B', PEERS, '--device', 'cuda', '--python', PYTHON, '--ranks', '1', '--batch',
            '1', '--seq', '16', '--steps', '2', '--rounds', '1', '--threads', '1', '--json', flags,
            limit_s=400)
        self.assertEqual(finished.exit_code, 1, str(finished))
        return {row['system']: row['error'] for row in json.loads(finished.output)['rows']}

    def test_peers_train_on_the_device_under_a_cap(self):
        errors = self.errors('--systems', 'torch', 'fsdp2', '--gpu-memory', '1GiB',
                             '--checkpoint-activations')
        self.assertIn('the loss does not fall: 0.0000 to 0.0000', errors['torch'])
        self.assertIn("Adam's states are all zero", errors['fsdp2'])

    def test_the_cap_is_one(self):
        errors = self.errors('--systems', 'torch', '--gpu-memory', '4MiB')
        self.assertIn('out of memory', errors['torch'])


if __name__ == '__main__':
    harness.main()
