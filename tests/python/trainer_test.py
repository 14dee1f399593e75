"""Hugging Face's Trainer, unmodified: the losses of torch.optim.AdamW, one hash whatever the layout, and a run that
resumes to the bit."""

import json
import os
import shutil
import unittest

import python_case
from python_case import PythonCase, examples, farthest, masters_hash, small_model, trained

python_case.need('transformers', 'accelerate')

import torch  # noqa: E402
import elixir  # noqa: E402

KINDS = ('llama', 'gpt2', 'qwen3', 'gemma3', 'mixtral')
WAYS = {
    'plain': {}, 'checkpointing': {'activation_checkpointing': True},
    'accumulation with a rest': {'gradient_accumulation_steps': 2, 'max_steps': 17},
    'clipped harder': {'max_grad_norm': 0.05}, 'two workers': {'dataloader_num_workers': 2},
}


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
        for kind in KINDS:
            for way, arguments in WAYS.items():
                with self.subTest(kind=kind, way=way):
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
