"""Whose elixird is it? One that a launch starts lives and dies with that launch, in its control group; a
service serves all launches of its user."""

import json
import os
import re
import signal

import harness
from harness import ENDLESS, GROUP_NOISE_BYTES, PATIENCE_S, TINY, program, stop, text_of, wait_until

SERVICE_OF_THIS_MACHINE = '/run/elixir/attach.sock'


def group_of(pid):
    """The memory control group of a process, of version 1 where there is one."""
    lines = [line.split(':', 2) for line in text_of(f'/proc/{pid}/cgroup').splitlines()]
    version1 = [path for _, controllers, path in lines if 'memory' in controllers.split(',')]
    return (version1 or [path for number, _, path in lines if number == '0'])[0]


class Launches(harness.GroupedTest):
    def setUp(self):
        super().setUp()
        if os.path.exists(SERVICE_OF_THIS_MACHINE):
            self.skipTest('a service of this machine would serve the launches')
        del self.environment['ELIXIR_RUNTIME_DIR']  # the folder is the launch's
        self.environment['XDG_RUNTIME_DIR'] = self.folder

    def statuses(self):
        """Of this test's elixirds, by pid, in the order in which they are shown."""
        finished = self.run_program(program('elixirctl'), 'status', '--json')
        own = self.processes('elixird')
        answers = [json.loads(line) for line in finished.lines]
        return {answer['daemon']['pid']: answer for answer in answers if answer['daemon']['pid'] in own}

    def elixird_of(self, group):
        return [pid for pid in self.processes('elixird') if pid in group.pids()]

    def trainer_of(self, group):
        return [pid for pid in self.processes('elixir-train') if pid in group.pids()]

    def expect_charged(self, group, other):
        """The one job of the group's elixird lies in its memory, and not in the other's."""
        elixird, = self.elixird_of(group)
        answer = self.statuses()[elixird]
        job, = answer['jobs']
        self.assertEqual(answer['daemon']['memory_group'], group_of(elixird))
        self.assertTrue(group.folder.endswith(os.path.basename(group_of(elixird))))
        self.assertGreaterEqual(group.shmem_bytes(), job['host_bytes'] - GROUP_NOISE_BYTES)
        self.assertLess(group.shmem_bytes(), job['host_bytes'] + other.shmem_bytes())

    def survives(self, starter, steps, undisturbed):
        """Of two jobs in groups of their own one is killed with its group. False: the other had ended
        before."""
        killed, kept = self.make_group(), self.make_group()
        train = [starter, program('elixir-train'), TINY, '--checksum']
        self.start(killed.inside(), train, ENDLESS).wait_for_text('step 1/')
        other = self.start(kept.inside(), train, '--log-every', '1', '--steps', str(steps))
        other.wait_for_text('step 1/')
        trainers = self.trainer_of(kept)
        try:
            stop(trainers[0])
        except (IndexError, OSError):
            return False
        self.expect_charged(killed, kept)
        self.expect_charged(kept, killed)
        killed.kill()
        wait_until(lambda: killed.shmem_bytes() <= GROUP_NOISE_BYTES, 'the memory of the killed job')
        os.kill(trainers[0], signal.SIGCONT)
        finished = other.wait()
        self.assertEqual(finished.exit_code, 0, str(finished))
        self.assertEqual(finished.checksum, undisturbed)
        return True

    def test_a_launch_that_is_killed_with_its_group_disturbs_no_other(self):
        for starter in ([], [program('elixir-run'), '--daemon-arg=--no-bandwidth-probe']):
            for steps in (100, 1000, 10000):
                undisturbed = self.succeed(program('elixir-train'), TINY, '--checksum', '--steps',
                                           str(steps)).checksum
                if self.survives(starter, steps, undisturbed):
                    break
            else:
                self.fail('the other job was never under way when the first one was killed')

    def test_a_job_is_admitted_by_the_limit_of_its_own_group(self):
        small, large = self.make_group(), self.make_group()
        small.limit(1 << 30)  # so much stays free (--memory-margin)
        large.limit(16 << 30)
        train = [program('elixir-run'), '--daemon-arg=--memory-margin=1GiB', program('elixir-train'), TINY,
                 '--steps', '2']
        for group, starts in ((small, False), (large, True)):
            finished = self.start(group.inside(), train).wait()
            self.assertEqual(finished.exit_code == 0, starts, str(finished))
            if not starts:
                self.assertIn(os.path.basename(group.folder), finished.errors)

    def as_torchrun(self, run, attempt):
        return {'RANK': '0', 'WORLD_SIZE': '1', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1',
                'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(29500 + attempt),
                'TORCHELASTIC_RUN_ID': run, 'TORCHELASTIC_RESTART_COUNT': str(attempt)}

    def test_a_launch_that_is_started_again_finds_its_elixird(self):
        started = []
        for run, attempt in (('a', 0), ('a', 1), ('b', 0)):
            running = self.start(program('elixir-train'), TINY, ENDLESS,
                                 environment=self.as_torchrun(run, attempt))
            running.wait_for_text('step 1/')
            told = re.search(r'event=elixird_started pid=(\d+) runtime_dir=(\S+)', running.errors)
            self.assertEqual(told is None, (run, attempt) == ('a', 1), running.errors)
            if told:
                started.append(int(told.group(1)))
                self.hold_elixird(told.group(2))
            running.signal(signal.SIGTERM)
            running.wait()
        self.assertEqual(list(self.statuses()), started[::-1])  # the newest one first
        self.stop_idle_elixird()

    def test_a_service_is_shared_and_outlives_a_job_that_is_killed_with_its_group(self):
        service = self.start(program('elixird'), '--no-bandwidth-probe')
        service.wait_for_text('event=listening')
        group = self.make_group()
        job = self.start(group.inside(), program('elixir-run'), program('elixir-train'), TINY, ENDLESS)
        job.wait_for_text('step 1/')
        self.assertEqual(self.processes('elixird'), [service.pid])
        self.assertEqual(self.statuses()[service.pid]['daemon']['launch'], '')
        group.kill()
        self.succeed(program('elixir-train'), TINY, '--steps', '2')
        self.assertEqual(self.processes('elixird'), [service.pid])
        service.signal(signal.SIGTERM)
        self.assertEqual(service.wait(PATIENCE_S).exit_code, 0)


if __name__ == '__main__':
    harness.main()
