"""A trainer is killed while forked workers have its descriptors: elixird frees the session nevertheless."""

import os
import signal
import subprocess
import sys
import time
import unittest

import python_case
from python_case import HERE, LOOK_S, ONE_RANK, TIMING, PythonCase, running_jobs

python_case.need('numpy')


class Workers(PythonCase):
    def test_a_killed_trainers_memory_is_freed_while_its_workers_live(self):
        trainer = subprocess.Popen([sys.executable, '-B', os.path.join(HERE, 'workers_program.py')],
                                   stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_RANK})
        workers = [int(pid) for pid in trainer.stdout.readline().split()]
        self.assertEqual(len(workers), 4)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # they would notice the death, and end
        try:
            (job,) = running_jobs()
            self.assertEqual(job['pids'], [trainer.pid])
            killed_s = time.monotonic()
            trainer.kill()
            while running_jobs():
                time.sleep(LOOK_S)  # cannot fail by chance: it polls
            seconds = time.monotonic() - killed_s
            alive = [worker for worker in workers if os.path.exists(f'/proc/{worker}')]
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            trainer.wait()
            trainer.stdout.close()
        self.assertEqual(alive, workers)
        print(f'from SIGKILL to a freed session: at most {seconds * 1e3:.0f} ms')
        if TIMING:
            self.assertLess(seconds, 0.5)  # cannot fail by chance: TIMING


if __name__ == '__main__':
    unittest.main()
