"""torch.distributed's init_process_group beside Elixir: under each starter, before and after."""

import os

import harness

PYTHON = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'python')
TORCHRUN = os.path.join(harness.REPOSITORY, '.venv', 'bin', 'torchrun')
LIBRARY = os.path.join(harness.BIN, '..', 'tests', 'libtrain_in_python.so')
RANKS = 2

# One rank. As programs under Slurm do, it tells torch the rank that srun has given it.
RANK = '''
import ctypes, os, sys
import torch
import torch.distributed as dist

def use_torch():
    own = {}
    if 'RANK' not in os.environ:
        own = {'rank': int(os.environ['SLURM_PROCID']), 'world_size': int(os.environ['SLURM_NTASKS'])}
    dist.init_process_group('gloo', **own)
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    print(f'torch sums up to {int(total)}', flush=True)

def use_elixir():
    print(f'Elixir trained with {ctypes.CDLL(sys.argv[1]).elixir_train()} ranks', flush=True)

torch.set_num_threads(1)
order = [use_torch, use_elixir] if sys.argv[2] == 'torch' else [use_elixir, use_torch]
for use in order:
    use()
dist.barrier()
dist.destroy_process_group()
'''


class InitProcessGroup(harness.ElixirTest):
    def check(self, output):
        self.assertEqual(output.count('torch sums up to 3'), RANKS, output)
        self.assertEqual(output.count(f'Elixir trained with {RANKS} ranks'), RANKS, output)

    def rank(self, first):
        script = os.path.join(self.folder, 'rank.py')
        with open(script, 'w', encoding='utf-8') as file:
            file.write(RANK)
        return [script, LIBRARY, first]

    def under_elixir_run(self, first):
        self.check(self.succeed(self.launch(RANKS, PYTHON, *self.rank(first)), limit_s=120).output)

    def under_torchrun(self, first):
        self.check(self.succeed(TORCHRUN, '--nproc-per-node', str(RANKS), '--master-port',
                                str(harness.free_port()), *self.rank(first), limit_s=120).output)

    # srun gives each task these; the script around it says where to meet.
    def under_slurm(self, first):
        shared = {'SLURM_NTASKS': str(RANKS), 'SLURM_JOB_ID': '77', 'SLURM_STEP_NUM_NODES': '1',
                  'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(harness.free_port())}
        ranks = [self.start(PYTHON, *self.rank(first),
                            environment={**shared, 'SLURM_PROCID': str(rank), 'SLURM_LOCALID': str(rank)})
                 for rank in range(RANKS)]
        ended = [rank.wait() for rank in ranks]
        self.assertEqual([one.exit_code for one in ended], [0] * RANKS, str(ended))
        self.check(''.join(one.output for one in ended))

    def test_it_works_before_and_after_elixir_under_every_starter(self):
        for starter in (self.under_elixir_run, self.under_torchrun, self.under_slurm):
            for first in ('torch', 'Elixir'):
                with self.subTest(starter=starter.__name__, first=first):
                    starter(first)
        self.stop_idle_elixird()
        self.assert_nothing_left()


if __name__ == '__main__':
    harness.main()
