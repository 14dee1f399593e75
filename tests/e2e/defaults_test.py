"""Fine-tuning with as few flags as possible: what a folder says is taken and printed, what is wrong is
reported at once, and a run that is resumed decays what it decayed before."""

import json
import os
import shutil

import harness
from checkpoint_run import Checkpoint, name_of, xxh3
from harness import TEXT, TINY, program, text_of

INVALID_ARGUMENT, BAD_INPUT = 2, 4
TRAIN = program('elixir-train')
MACHINE = ['--machine', os.path.join(harness.REPOSITORY, 'examples', 'machine_a100x4.json'), '--gpus', '1',
           '--host-memory', '4TiB']


class Folder(Checkpoint):
    def exported(self, dtype='bf16'):
        folder = os.path.join(self.folder, dtype)
        self.succeed(TRAIN, TINY, '--steps', '1', '--dtype', dtype, '--export', folder)
        return folder

    def in_cache(self, folder):
        """The same as the hub's cache has it: every file a link to a blob."""
        model = os.path.join(self.folder, 'hub', 'models--a--b')
        snapshot = os.path.join(model, 'snapshots', '0123')
        for path in (snapshot, os.path.join(model, 'blobs'), os.path.join(model, 'refs')):
            os.makedirs(path)
        for name in os.listdir(folder):
            shutil.copy(os.path.join(folder, name), os.path.join(model, 'blobs', 'of-' + name))
            os.symlink('../../blobs/of-' + name, os.path.join(snapshot, name))
        with open(os.path.join(model, 'refs', 'main'), 'w', encoding='utf-8') as file:
            file.write('0123')
        return snapshot

    def train_from(self, folder, *flags, code=0):
        finished = self.run_program(TRAIN, '--init', folder, '--batch', '1', '--threads', '1', '--steps', '1',
                                    TEXT, '--bytes', flags, limit_s=120)
        self.assertEqual(finished.exit_code, code, str(finished))
        return finished

    def test_a_snapshot_of_the_hubs_cache_everywhere(self):
        snapshot = self.in_cache(self.exported())
        again = os.path.join(self.folder, 'again')
        trained = self.train_from(snapshot, '--export', again)
        self.assertIn(f'dtype bf16, the type of {snapshot}/config.json', trained.output)
        self.assertIn('lr 2e-05, ', trained.output)
        with open(os.path.join(again, 'config.json'), encoding='utf-8') as file:
            self.assertEqual(json.load(file)['torch_dtype'], 'bfloat16')
        self.succeed(program('elixir-generate'), snapshot, '--prompt', 'def ', '--length', '2')
        for path in (snapshot, os.path.join(snapshot, 'model.safetensors.index.json')):
            sizes = self.succeed(program('elixirctl'), 'estimate', '--json', '--safetensors', path).output
            self.assertEqual(json.loads(sizes)['params'], 3_257_856)
        # By its name, too.
        named = self.run_program(TRAIN, '--init', 'a/b', environment={'HF_HUB_CACHE': os.path.dirname(
            os.path.dirname(os.path.dirname(snapshot)))})
        self.assertEqual(named.exit_code, BAD_INPUT)
        self.assertIn(f'give the folder {snapshot}', named.errors)
        # A link that leaves the cache.
        weights = next(name for name in os.listdir(snapshot) if name.endswith('00001.safetensors'))
        os.remove(os.path.join(snapshot, weights))
        os.symlink(os.path.join(self.folder, 'bf16', weights), os.path.join(snapshot, weights))
        for command in ([TRAIN, '--init', snapshot, TEXT, '--bytes'],
                        [program('elixir-generate'), snapshot, '--prompt', 'a', '--length', '1']):
            refused = self.run_program(command)
            self.assertEqual(refused.exit_code, BAD_INPUT, str(refused))
            self.assertIn(f'{weights}: a symbolic link that leaves the hub', refused.errors)

    def test_a_plan_without_flags_is_taken_at_the_first_try(self):
        for dtype in ('bf16', 'fp32'):
            folder, plan = self.exported(dtype), os.path.join(self.folder, 'plan.json')
            self.succeed(program('elixirctl'), 'plan', '--config', os.path.join(folder, 'config.json'), *MACHINE,
                         '--output', plan)
            with open(plan, encoding='utf-8') as file:
                self.assertEqual(json.load(file)['dtype'], dtype)
            trained = self.succeed(TRAIN, '--init', folder, '--steps', '1', '--threads', '1', TEXT, '--bytes',
                                   '--plan', plan, limit_s=120)
            self.assertIn(f'dtype {dtype}, with activation checkpointing, as the plan', trained.output)
            self.assertNotIn('plan_of_another_batch', trained.errors)

    def test_all_that_is_wrong_is_one_round(self):
        folder = self.exported()
        config = os.path.join(folder, 'config.json')
        model = json.loads(text_of(config))
        model['activation_function'] = 'relu6'
        with open(config, 'w', encoding='utf-8') as file:
            json.dump(model, file)
        refused = self.run_program(TRAIN, '--init', folder, '--data', self.folder, 'https://example.org/a',
                                   '--export', folder)
        self.assertEqual(refused.exit_code, BAD_INPUT, str(refused))
        for said in ('a directory', 'it is a URL', "'activation_function' is", 'exists already'):
            self.assertIn(said, refused.errors)
        refused = self.run_program(TRAIN, '--init', folder, '--data', self.folder, '--seq', '9999')
        self.assertEqual(refused.exit_code, BAD_INPUT, str(refused))
        for said in ('longer than the context', 'a directory', "'activation_function' is"):
            self.assertIn(said, refused.errors)

    def test_the_planner_names_the_model_first(self):
        nowhere = {'ELIXIR_MACHINE_FILE': os.path.join(self.folder, 'none.json')}
        for flags, said in (([], 'elixirctl: no model is given: name one with --model'),
                            (['--model', 'gpt3'], "elixirctl: no model is called 'gpt3'")):
            refused = self.run_program(program('elixirctl'), 'plan', *flags, environment=nowhere)
            self.assertEqual(refused.exit_code, INVALID_ARGUMENT)
            self.assertTrue(refused.errors.startswith(said), refused.errors)
            self.assertIn('this machine has not been measured', refused.errors)


class Decay(Checkpoint):
    DECAY = ['--lr', '1e-2', '--warmup-steps', '0', '--weight-decay', '0.5']

    def run_of(self, *flags):
        return self.train(1, self.DECAY, '--checkpoints', self.checkpoints, flags)

    def forget_record(self, checkpoint):
        """As a release wrote it that had no record of what decays."""
        path = os.path.join(checkpoint, 'elixir.json')
        manifest = json.loads(text_of(path))['manifest']
        record = json.loads(manifest['program'])
        del record['decay'], record['lr']
        manifest['program'] = json.dumps(record)
        inner = json.dumps(manifest, separators=(',', ':'))
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'{{"manifest":{inner},"xxh3":"{xxh3(inner.encode())}"}}\n')

    def resume_at_10(self, *flags):
        return self.run_program(TRAIN, TINY, self.DECAY, '--steps', '20', '--checksum', '--resume',
                                os.path.join(self.checkpoints, name_of(10)), flags)

    def test_a_resumed_run_decays_what_it_decayed(self):
        own = self.run_of('--save-every', '10')
        resumed = self.resume_at_10()
        self.assertEqual(resumed.checksum, own.checksum, str(resumed))
        refused = self.resume_at_10('--decay-all')
        self.assertEqual(refused.exit_code, INVALID_ARGUMENT)
        self.assertIn('leave out --decay-all', refused.errors)
        shutil.rmtree(self.checkpoints)
        every = self.run_of('--save-every', '10', '--decay-all')
        self.assertNotEqual(every.checksum, own.checksum)
        for forget in (False, True):
            if forget:
                self.forget_record(os.path.join(self.checkpoints, name_of(10)))
            for flags in ([], ['--decay-all']):
                self.assertEqual(self.resume_at_10(flags).checksum, every.checksum, (forget, flags))


if __name__ == '__main__':
    harness.main()
