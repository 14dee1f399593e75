"""The first start on a GPU that is not known yet: it is measured, and the training is planned."""

import os
import re

import fake_gpu

# Virtual times, so that no rate is infinite.
GPU = {'KERNEL_US': 20, 'LINK_GB_S': 16, 'MEMORY_GIB': 8}


class FirstProbe(fake_gpu.FakeGpuTest):
    def setUp(self):
        super().setUp()
        del self.environment['ELIXIR_PROBE']

    def planned(self, *flags, **settings):
        finished = self.train('--steps', '2', '--dtype', 'bf16', *flags, **{**GPU, **settings})
        self.assertRegex(finished.output, r'predicted +[\d.]+ ms a step', str(finished))
        return finished

    def test_the_first_start_probes_and_plans_and_the_second_does_neither(self):
        first = self.planned()
        self.assertIn('event=first_probe ', first.errors)
        self.assertIn('measuring links to the GPUs', first.errors)
        second = self.planned()
        self.assertNotIn('first_probe', second.errors)
        self.assertIn('event=plan_reused', second.errors)
        self.assert_sound(second)

    def test_another_cards_rates_are_not_used(self):
        self.planned()
        other = self.planned(MEMORY_GIB=6)
        self.assertIn('event=machine_file_of_other_hardware', other.errors)
        self.assertIn('event=first_probe ', other.errors)
        # Each has its own: going back measures nothing.
        self.assertNotIn('event=first_probe ', self.planned().errors)
        self.assertNotIn('event=first_probe ', self.planned(MEMORY_GIB=6).errors)

    def test_two_ranks_probe_once_and_agree(self):
        finished = self.planned(ranks=2, DEVICES=2)
        self.assertEqual(finished.errors.count('event=first_probe '), 1, str(finished))
        folder = os.path.join(self.environment['XDG_CACHE_HOME'], 'elixir')
        self.assertEqual(len([name for name in os.listdir(folder) if re.match(r'rates-.*json$', name)]), 1)

    def test_no_plan_measures_nothing(self):
        finished = self.train('--steps', '1', '--no-plan', **GPU)
        self.assertNotIn('first_probe', finished.errors)
        self.assertNotIn('predicted', finished.output)


if __name__ == '__main__':
    fake_gpu.main()
