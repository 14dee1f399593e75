"""Hugging Face's Trainer, unmodified: the losses of torch.optim.AdamW, one hash whatever the layout, and a run that
resumes to the bit."""

import itertools
import json
import os
import shutil
import unittest

import python_case
from python_case import (
    EVERY_CASE, KINDS, WAYS, PythonCase, examples, farthest, masters_hash, small_model, trained)

python_case.need('transformers', 'accelerate')

import torch  # noqa: E402
import elixir  # noqa: E402
from elixir import _beside  # noqa: E402

def with_torch(kind, folder, **arguments):
    model = small_model(kind)
    return trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1), folder, **arguments)[:2]


def with_elixir(kind, folder, dtype=torch.float32, options=None, **arguments):
    model = small_model(kind, dtype)
    optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, **(options or {'rcache_blocks': 4}))
    losses, norms, trainer = trained(model, optimizer, folder, **arguments)
    return losses, norms, optimizer, trainer


class Trainer(PythonCase):
    def test_losses_and_norms_are_those_of_torch(self):
        """By default each kind of model once, and each way once."""
        for kind, way in itertools.product(KINDS, WAYS):
            if not EVERY_CASE and KINDS.index(kind) != list(WAYS).index(way):
                continue
            with self.subTest(kind=kind, way=way):
                arguments = WAYS[way]
                theirs, their_norms = with_torch(kind, self.folder, **arguments)
                ours, our_norms, optimizer, _ = with_elixir(kind, self.folder, **arguments)
                self.assertLess(farthest(ours, theirs), 1e-6)
                self.assertLess(farthest(our_norms, their_norms), 1e-5)
                self.assertEqual(optimizer.accumulate, arguments.get('gradient_accumulation_steps', 1))

    def test_bits_do_not_depend_on_the_layout(self):
        for dtype in (torch.float32, torch.bfloat16):
            hashes = {masters_hash(with_elixir('llama', self.folder, dtype, options)[2]) for options in (
                {}, {'rcache_blocks': 3, 'chunk_numel': 20000}, {'rcache_blocks': 2, 'gpu_state_share': 0.5},
                {'update': 'early'}, {'update': 'sync', 'chunk_numel': 50000})}
            self.assertEqual(len(hashes), 1, dtype)

    def test_bf16_over_fp32_masters(self):
        """Close to torch's AdamW over FP32 weights with a BF16 forward, which is another rounding."""
        theirs, _ = with_torch('llama', self.folder, bf16=True)
        ours, _, optimizer, _ = with_elixir('llama', self.folder, bf16=True)
        self.assertEqual(optimizer.dtype, torch.bfloat16)
        self.assertLess(farthest(ours, theirs), 5e-3)

    def test_a_moved_checkpoint_resumes_to_the_bit(self):
        for dtype in (torch.float32, torch.bfloat16):
            whole = masters_hash(with_elixir('gpt2', self.folder, dtype)[2])
            first = os.path.join(self.folder, f'first-{dtype}')
            with_elixir('gpt2', first, dtype, save_strategy='steps', save_steps=10, save_total_limit=2)
            moved = os.path.join(self.folder, f'moved-{dtype}')
            os.rename(os.path.join(first, 'checkpoint-10'), moved)
            self.assertLess(os.path.getsize(os.path.join(moved, 'optimizer.pt')), 10_000)
            for _ in range(2):  # the second writes the checkpoints again that the first has written
                losses, _, optimizer, _ = with_elixir('gpt2', first, dtype, resume=moved, save_strategy='steps', save_steps=5)
                self.assertEqual(masters_hash(optimizer), whole)
            shutil.rmtree(os.path.join(moved, 'elixir'))
            with self.refused('has no folder elixir/'):
                with_elixir('gpt2', self.folder, dtype, resume=moved)

    def test_a_checkpoint_holds_the_model_once(self):
        """Trainer's own copy, in the compute type; and the moments, and what completes masters: 12 bytes in all."""
        for dtype in (torch.float32, torch.bfloat16):
            folder = os.path.join(self.folder, str(dtype))
            optimizer = with_elixir('gpt2', folder, dtype, save_strategy='steps', save_steps=10)[2]
            numel = sum(parameter.numel() for parameter in optimizer._model().parameters())
            bytes_each = python_case.bytes_in(os.path.join(folder, 'checkpoint-10')) / numel
            print(f'{dtype}: {bytes_each:.2f} bytes a parameter')
            self.assertGreater(bytes_each, 12)
            self.assertLess(bytes_each, 12.7)  # a second copy: 14 and 16
            self.assertEqual(sorted(os.listdir(os.path.join(folder, 'checkpoint-10', 'elixir'))),
                             ['elixir.json', 'optimizer'])

    def test_a_checkpoint_of_the_same_step_has_the_same_masters(self):
        _, _, optimizer, trainer = with_elixir('gpt2', self.folder, torch.bfloat16, save_strategy='steps', save_steps=20)
        before = masters_hash(optimizer)
        trainer.train(resume_from_checkpoint=os.path.join(self.folder, 'checkpoint-20'))
        self.assertEqual(masters_hash(optimizer), before)

    def test_values_that_are_not_the_checkpoints_are_refused(self):
        from safetensors.torch import load_file, save_file
        with_elixir('gpt2', self.folder, save_strategy='steps', save_steps=10)
        path = os.path.join(self.folder, 'checkpoint-10', 'model.safetensors')
        values = load_file(path)
        values['transformer.ln_f.bias'][7] += 1e-3
        save_file(values, path, metadata={'format': 'pt'})
        with self.refused('holds states alone', 'load the values that were saved beside it first'):
            with_elixir('gpt2', self.folder, resume=os.path.join(self.folder, 'checkpoint-10'))

    def test_a_checkpoint_with_the_model_inside_resumes(self):
        """As earlier versions wrote it, and as it is written where Trainer's files lack a value."""
        whole = masters_hash(with_elixir('gpt2', self.folder, torch.bfloat16)[2])
        self.addCleanup(setattr, _beside, 'values_of', _beside.values_of)
        _beside.values_of = lambda model: {'a name that no file has'}
        with_elixir('gpt2', self.folder, torch.bfloat16, save_strategy='steps', save_steps=10)
        folder = os.path.join(self.folder, 'checkpoint-10')
        self.assertIn('model-00001-of-00001.safetensors', os.listdir(os.path.join(folder, 'elixir')))
        self.assertEqual(masters_hash(with_elixir('gpt2', self.folder, torch.bfloat16, resume=folder)[2]), whole)

    def test_a_model_of_a_folder_resumes(self):
        """Its parameters have no memory when Trainer loads the checkpoint's values."""
        import transformers
        source = os.path.join(self.folder, 'source')
        small_model('qwen3').save_pretrained(source)
        hashes = []
        for resume in (None, os.path.join(self.folder, 'checkpoint-10')):
            model = elixir.hf.from_pretrained(transformers.AutoModelForCausalLM, source)
            optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, dtype='bf16', rcache_blocks=4)
            trained(model, optimizer, self.folder, resume=resume, save_strategy='steps', save_steps=10)
            hashes.append(masters_hash(optimizer))
        self.assertEqual(*hashes)
        self.assertNotIn('model-00001-of-00001.safetensors',
                         os.listdir(os.path.join(self.folder, 'checkpoint-10', 'elixir')))

    def test_a_checkpoint_after_sigterm_resumes_to_the_bit(self):
        """enable_jit_checkpoint=True, whichever of Trainer's events comes first after the signal."""
        import transformers

        def trainer_in(folder, **arguments):
            model = small_model('gpt2')
            optimizer = elixir.AdamW(model, lr=1e-3)
            settings = transformers.TrainingArguments(
                folder, max_steps=12, per_device_train_batch_size=4, save_strategy='no', report_to=[], use_cpu=True,
                disable_tqdm=True, seed=1, **arguments)
            return transformers.Trainer(model, settings, train_dataset=examples(64), optimizers=(optimizer, None)), optimizer
        trainer, optimizer = trainer_in(self.folder)
        trainer.train()
        whole = masters_hash(optimizer)
        for event in ('on_step_begin', 'on_pre_optimizer_step', 'on_step_end'):
            with self.subTest(event):
                folder = os.path.join(self.folder, event)
                trainer, _ = trainer_in(folder, enable_jit_checkpoint=True)
                callback = next(each for each in trainer.callback_handler.callbacks
                                if type(each).__name__ == 'JITCheckpointCallback')
                hears = getattr(callback, event)

                def asks(args, state, control, callback=callback, hears=hears, **kwargs):
                    if state.global_step == 5:  # as the signal's handler does after its wait
                        callback.jit_manager.is_checkpoint_requested = True
                    return hears(args, state, control, **kwargs)
                setattr(callback, event, asks)
                trainer.train()
                self.assertLess(trainer.state.global_step, 12)
                trainer, optimizer = trainer_in(folder)
                trainer.train(resume_from_checkpoint=True)
                self.assertEqual(masters_hash(optimizer), whole)

    def test_states_of_another_checkpoint_are_refused(self):
        with_elixir('gpt2', self.folder, save_strategy='steps', save_steps=10)
        newer, older = (os.path.join(self.folder, f'checkpoint-{step}', 'elixir') for step in (20, 10))
        shutil.rmtree(newer)
        shutil.copytree(older, newer)
        with self.refused('after step 10', 'of step 20'):
            with_elixir('gpt2', self.folder, resume=True)

    def test_an_unfinished_checkpoint_does_not_count(self):
        from transformers.trainer_utils import get_last_checkpoint
        with_elixir('gpt2', self.folder, save_strategy='steps', save_steps=10)
        older, newer = (os.path.join(self.folder, f'checkpoint-{step}') for step in (10, 20))
        self.assertEqual((elixir.last_checkpoint(self.folder), get_last_checkpoint(self.folder)), (newer, newer))
        self.assertFalse(os.path.exists(os.path.join(newer, 'elixir.unfinished')))
        shutil.rmtree(os.path.join(newer, 'elixir'))
        open(os.path.join(newer, 'elixir.unfinished'), 'wb').close()  # as a run leaves it that is killed before
        self.assertEqual((elixir.last_checkpoint(self.folder), get_last_checkpoint(self.folder)), (older, older))
        with self.refused('has no folder elixir/', older):
            with_elixir('gpt2', self.folder, resume=newer)
        self.assertIsNone(elixir.last_checkpoint(os.path.join(self.folder, 'nowhere')))

    def test_old_checkpoints_are_removed_once_the_new_one_is_complete(self):
        with_elixir('gpt2', self.folder, save_strategy='steps', save_steps=5, save_total_limit=1)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith('checkpoint')], ['checkpoint-20'])

    def test_the_model_of_a_checkpoint_is_the_one_that_was_trained(self):
        losses, _, optimizer, trainer = with_elixir('qwen3', self.folder, save_strategy='steps', save_steps=20)
        read = type(trainer.model).from_pretrained(os.path.join(self.folder, 'checkpoint-20'))
        state = trainer.model.state_dict()
        self.assertEqual(set(state), set(read.state_dict()))
        for name, values in read.state_dict().items():
            self.assertTrue(torch.equal(values, state[name]), name)
        self.assertEqual(read.lm_head.weight.data_ptr(), read.model.embed_tokens.weight.data_ptr())  # still tied

    def test_logs_say_what_the_update_does(self):
        _, _, _, trainer = with_elixir('llama', self.folder)
        with open(os.path.join(self.folder, 'state.json'), 'w', encoding='utf-8') as file:
            json.dump(trainer.state.log_history, file)
        entry = next(entry for entry in trainer.state.log_history if 'loss' in entry)
        self.assertGreater(entry['elixir_update_gparam_s'], 0)
        self.assertIn(entry['elixir_binding'], ('compute', 'link up', 'link down', 'update'))
        self.assertTrue(0 < entry['elixir_hit_rate'] <= 1)

    def test_arguments_that_cannot_be_followed_are_refused(self):
        for arguments, texts in (
                ({'torch_compile': True}, ('torch_compile', 'leave it out')),
                ({'auto_find_batch_size': True}, ('auto_find_batch_size', 'per_device_train_batch_size')),
                ({'max_grad_norm': 0.25}, ('max_grad_norm=0.25', 'max_grad_norm=0.5', 'give it once')),
                ({'gradient_accumulation_steps': 4}, ('gradient_accumulation_steps=4', 'accumulate=2'))):
            with self.subTest(arguments), self.refused(*texts):
                with_elixir('gpt2', self.folder, options={'max_grad_norm': 0.5, 'accumulate': 2},
                            **{'gradient_accumulation_steps': 2, **arguments})
        with self.refused('bf16=True', 'torch.float32', 'dtype="bf16"'):
            with_elixir('gpt2', self.folder, options={'dtype': 'fp32'}, bf16=True)
        with self.refused('use_cpu', 'device="cpu"'):
            with_elixir('gpt2', self.folder, options={'device': 'cuda'})
        for full_eval in ('bf16_full_eval', 'fp16_full_eval'):  # Trainer would cast the model after hours of training
            with self.refused(full_eval, 'leave it out'):
                with_elixir('gpt2', self.folder, **{full_eval: True})

    def test_trainer_makes_the_groups_and_the_optimizer(self):
        """optimizer_cls_and_kwargs, also with model_init: no decay of biases and norms, as with torch's class."""
        import transformers
        for given in ({'model': small_model('gpt2')}, {'model_init': lambda: small_model('gpt2')}):
            losses, groups = {}, {}
            for kind in (torch.optim.AdamW, elixir.AdamW):
                given = {**given, **({'model': small_model('gpt2')} if 'model' in given else {})}
                arguments = transformers.TrainingArguments(
                    self.folder, max_steps=10, logging_steps=5, weight_decay=0.3, save_strategy='no', report_to=[],
                    use_cpu=True, disable_tqdm=True, seed=1)
                trainer = transformers.Trainer(args=arguments, train_dataset=examples(64),
                                               optimizer_cls_and_kwargs=(kind, {'lr': 1e-3, 'eps': 1e-6}), **given)
                trainer.train()
                losses[kind] = [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry]
                groups[kind] = [(len(group['params']), group['weight_decay'], group['eps'])
                                for group in trainer.optimizer.optimizer.param_groups]
            self.assertIsInstance(trainer.optimizer.optimizer, elixir.AdamW)
            self.assertEqual(groups[elixir.AdamW], groups[torch.optim.AdamW])
            self.assertLess(farthest(losses[elixir.AdamW], losses[torch.optim.AdamW]), 1e-6)

    def test_evaluation_and_generation_beside_training(self):
        model = small_model('llama')
        theirs = small_model('llama')
        both = []
        for each, optimizer in ((theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.1)),
                                (model, elixir.AdamW(model, lr=1e-3, weight_decay=0.1))):
            _, _, trainer = trained(each, optimizer, self.folder)
            loss = trainer.evaluate(examples(8, seed=2))['eval_loss']
            tokens = each.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False).tolist()
            both.append((loss, tokens))
        self.assertAlmostEqual(both[0][0], both[1][0], places=5)
        self.assertEqual(both[0][1], both[1][1])


if __name__ == '__main__':
    unittest.main()
