"""Runs that diverge, and weights that nobody can train with: each ends with its own exit code and a line that names
the parameter, and the last good checkpoint stays. The rules are for models/run_health_test.cpp and
checkpoint/listing_test.cpp; each parameter in turn is for client/finite_values_test.cpp."""

import json
import os
import struct

import harness
from checkpoint_run import MODEL, OPTIMIZER, TRAIN, Checkpoint, name_of, replace_file, step_names
from harness import NIGHTLY, TEXT, TINY, program

DIVERGED = 11
# From step 7 on the loss is not a number.
SEVENTH = ['--log-every', '1', '--inject-overflow', '0,6']
NAN, LARGE = float('nan'), 7e4


def with_value(folder, tensor, value, last=False, name=MODEL):
    """Puts a value into the place of a tensor's first or last one, in FP32. The manifest fits."""
    with open(os.path.join(folder, name), 'rb') as file:
        data = bytearray(file.read())
    header_bytes = struct.unpack('<Q', data[:8])[0]
    entry = json.loads(data[8:8 + header_bytes])[tensor]
    assert entry['dtype'] == 'F32', entry
    begin, end = entry['data_offsets']
    at = 8 + header_bytes + (end - 4 if last else begin)
    data[at:at + 4] = struct.pack('<f', value)
    replace_file(folder, name, bytes(data))


class Diverging(Checkpoint):
    def run_until(self, steps, *flags, ranks=1):
        # Which is no reason to start it again.
        command = self.launch(ranks, TRAIN, flags=['--max-restarts', '2']) if ranks > 1 else [TRAIN]
        return self.run_program(command, TINY, SEVENTH, '--steps', str(steps), flags, limit_s=120)

    def into(self, name='checkpoints'):
        return ['--checkpoints', os.path.join(self.folder, name)]

    def test_a_run_ends_with_11_on_all_ranks_and_its_last_good_checkpoint_stays(self):
        exported = os.path.join(self.folder, 'exported')
        run = self.run_until(200, self.into(), '--save-every', '2', '--keep', '1', '--diverged-after', '5',
                             '--export', exported, ranks=2)
        self.assertEqual(run.exit_code, DIVERGED, str(run))
        names = step_names(self.checkpoints)
        self.assertEqual(names[0], name_of(4), str(run))
        self.assertEqual(len(names), 2, 'the last one beside it, as --keep 1 asks for')
        good = self.at(4)
        self.assertRegex(run.errors, r"diverged: the loss was nan in the \d steps 7 to \d+; the first parameter that "
                         r"is not finite is 'transformer\.wte\.weight', \d+ of \d+ values; continue from "
                         rf'{good}: --resume {good}, with another --checkpoints and a lower --lr or --clip-norm 1')
        self.assertIn('elixir-run: no restart, because it would end with exit code 11 too', run.errors)
        self.assertRegex(run.output, r'(?m)^\[rank 0\] failed: step \d+ of 200: diverged: the loss was nan')
        self.assertNotIn('done:', run.output)
        self.assertRegex(run.output, rf'saved \S+{name_of(6)} in .*, \d+ values are not finite')
        self.assertFalse(os.path.exists(exported))
        # The remedy is one.
        on = self.run_program(TRAIN, TINY, '--steps', '6', '--resume', good, self.into('others'))
        self.assertEqual(on.exit_code, 0, str(on))
        # What has diverged is no start, whichever way it is named.
        newest = os.path.join(self.checkpoints, names[1])
        for flags in ([*self.into(), '--resume', 'latest'], ['--resume', newest], ['--init', newest, *TEXT]):
            refused = self.run_program(TRAIN, TINY, '--steps', '200', flags)
            self.assertEqual(refused.exit_code, 4, str(refused))
            self.assertRegex(refused.errors, rf"{newest}: 'transformer\.wte\.weight' has \d+ values that are NaN")
            self.assertNotIn('step 1/', refused.output)
            if '--init' not in flags:
                self.assertIn(f'continue from {good}', refused.errors)
        refused = self.run_program(program('elixirctl'), 'checkpoint', 'export', newest, '--torch',
                                   os.path.join(self.folder, 'adam.pt'))
        self.assertEqual(refused.exit_code, 4, str(refused))
        self.assertIn("'transformer.wte.weight' has ", refused.errors)

    def test_a_run_that_ends_before_that_number_of_steps_does_not_end_well(self):
        exported = os.path.join(self.folder, 'exported')
        at_the_end = 'weights or their states are not finite after the last step'
        # Without a checkpoint of the last step, too.
        for steps, saves, ranks, text in ((8, True, 1, 'the loss was nan in the 2 steps 7 to 8'),
                                          (6, True, 1, at_the_end), (6, False, 2, at_the_end)):
            with self.subTest(steps=steps, saves=saves):
                into = self.into(f'of-{steps}') if saves else []
                run = self.run_until(steps, into, '--export', exported, '--checksum', ranks=ranks)
                self.assertEqual(run.exit_code, DIVERGED, str(run))
                self.assertIn(text, run.errors)
                self.assertIn("parameter that is not finite is 'transformer.wte.weight', ", run.errors)
                self.assertRegex(run.lines[-1], rf'^(\[rank 0\] )?failed: step {steps} of {steps}: diverged: ')
                self.assertFalse(os.path.exists(exported))
                if saves:
                    self.assertEqual(step_names(into[1]), [name_of(steps)])

    def test_steps_that_are_skipped_count_and_weights_stay(self):
        run = self.run_until(20, self.into(), '--clip-norm', '1', '--diverged-after', '1')
        self.assertEqual(run.exit_code, DIVERGED, str(run))
        self.assertIn('diverged: a gradient was not finite in', run.errors)
        self.assertIn('all parameters are finite', run.errors)

    def test_0_is_never(self):
        run = self.run_until(9, '--diverged-after', '0')
        self.assertEqual(run.exit_code, 0, str(run))
        self.assertIn('last_loss nan', run.output)
        self.assertNotIn('-nan', run.output)


class Weights(Checkpoint):
    """Of --init, by kind: embeddings, norms, matrices, biases; the first and the last of the model."""

    KINDS = [('gpt2-nano', 'transformer.wte.weight', False, 1), ('gpt2-nano', 'transformer.ln_f.bias', True, 2),
             ('llama-nano', 'lm_head.weight', True, 1), ('gpt2-nano', 'transformer.wpe.weight', True, 2),
             ('gpt2-nano', 'transformer.h.0.ln_1.weight', False, 1),
             ('gpt2-nano', 'transformer.h.0.attn.c_attn.weight', True, 2),
             ('gpt2-nano', 'transformer.h.3.mlp.c_proj.bias', False, 1),
             ('llama-nano', 'model.embed_tokens.weight', True, 2), ('llama-nano', 'model.norm.weight', False, 1)]

    def exported(self, model):
        folder = os.path.join(self.folder, model)
        self.succeed(TRAIN, TINY, '--model', model, '--steps', '1', '--export', folder)
        return folder

    def begin(self, folder, ranks, *flags):
        command = self.launch(ranks, TRAIN) if ranks > 1 else [TRAIN]
        return self.run_program(command, TINY, '--init', folder, *TEXT, '--bytes', '--steps', '1', flags, limit_s=120)

    def test_states_that_no_training_has_are_refused_by_name(self):
        self.succeed(TRAIN, TINY, '--steps', '1', '--checkpoints', self.checkpoints)
        before = open_bytes(self.at(1), OPTIMIZER)
        resume = [TRAIN, TINY, '--steps', '2', '--resume', self.at(1)]
        export = [program('elixirctl'), 'checkpoint', 'export', self.at(1), '--torch',
                  os.path.join(self.folder, 'adam.pt')]
        count = 'it is 1.5, but a count of steps is a whole number'
        square = 'has 1 value that is NaN, infinite or negative'
        for state, value, said, commands in (('step', 1.5, count, (resume, export)),
                                             ('exp_avg_sq', -1, square, (resume, export) if NIGHTLY else (export,))):
            with_value(self.at(1), f'state.transformer.ln_f.bias.{state}', value, name=OPTIMIZER)
            for command in commands:
                refused = self.run_program(command)
                self.assertEqual(refused.exit_code, 4, str(refused))
                self.assertIn(f"'state.transformer.ln_f.bias.{state}'", refused.errors)
                self.assertIn(said, refused.errors)
            replace_file(self.at(1), OPTIMIZER, before)

    def test_a_value_that_is_none_is_refused_by_name(self):
        kinds = self.KINDS if NIGHTLY else self.KINDS[:3]
        whole = {model: self.exported(model) for model in sorted({kind[0] for kind in kinds})}
        before = {model: open_bytes(folder) for model, folder in whole.items()}
        for model, tensor, last, ranks in kinds:
            with self.subTest(tensor=tensor):
                with_value(whole[model], tensor, NAN, last)
                refused = self.begin(whole[model], ranks)
                self.assertEqual(refused.exit_code, 4, str(refused))
                self.assertIn(f"{whole[model]}: '{tensor}' has 1 value that is NaN or infinite", refused.errors)
                self.assertNotIn('step 1/', refused.output)
                replace_file(whole[model], MODEL, before[model])
        folder = whole['gpt2-nano']
        with_value(folder, 'transformer.wte.weight', LARGE)
        refused = self.begin(folder, 1, '--dtype', 'fp16')
        self.assertEqual(refused.exit_code, 4, str(refused))
        self.assertIn("'transformer.wte.weight' has 1 value that is beyond 65504, the largest of fp16", refused.errors)
        self.assertEqual(self.begin(folder, 1, '--dtype', 'bf16', '--diverged-after', '0').exit_code, 0)


def open_bytes(folder, name=MODEL):
    with open(os.path.join(folder, name), 'rb') as file:
        return file.read()


if __name__ == '__main__':
    harness.main()
