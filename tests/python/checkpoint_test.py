"""elixir.checkpoint: torch's gradients, whatever regions keep; Trainer's layers are such regions."""

import unittest

import python_case
from python_case import PythonCase, masters_hash, small_model, trained

python_case.need('transformers', 'accelerate')

import torch  # noqa: E402
import elixir  # noqa: E402
from torch.utils.checkpoint import checkpoint as torch_checkpoint  # noqa: E402

KEEPS = ('recompute', 'products:1', 'products:2', 'keep', 'host')


class Block(torch.nn.Module):
    """With arguments by name, tensors in containers, numbers, and a result that is no tensor."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 16)

    def forward(self, x, pair, *, scale=1.0, mask=None, name=''):
        inner = torch.nn.functional.gelu(self.first(x + pair['add'])) * scale
        if mask is not None:
            inner = inner * mask
        return {'x': x + torch.nn.functional.dropout(self.second(inner), 0.25), 'name': name}, (x.shape[0], None)


def gradients(checkpoint):
    """Of four steps; the first ones learn what second runs need."""
    torch.manual_seed(3)
    blocks = torch.nn.ModuleList(Block() for _ in range(3))
    everything = []
    for step in range(4):
        torch.manual_seed(step)
        given = torch.randn(6, 16, requires_grad=True)
        x, add, mask = given, torch.randn(6, 16, requires_grad=True), torch.rand(6, 32)
        for number, block in enumerate(blocks):
            made, (rows, nothing) = checkpoint(block, x, {'add': add}, scale=0.5, mask=mask, name=f'block {number}')
            assert (made['name'], rows, nothing) == (f'block {number}', 6, None)
            x = made['x']
        x.square().sum().backward()
        everything += [given.grad, add.grad] + [parameter.grad.clone() for parameter in blocks.parameters()]
        everything.append(torch.rand(1))  # the generator goes on as without regions
        blocks.zero_grad()
    return everything


class Checkpoint(PythonCase):
    def test_gradients_are_those_of_torch(self):
        def theirs(function, *args, **kwargs):
            return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)

        def plain(function, *args, **kwargs):
            return function(*args, **kwargs)
        ours = gradients(elixir.checkpoint)
        for other in (gradients(theirs), gradients(plain)):
            self.assertEqual(len(ours), len(other))
            for a, b in zip(ours, other, strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_an_exception_keeps_its_type(self):
        class Mine(Exception):
            pass

        def raises(at, kind):
            runs = []

            def function(x):
                runs.append(len(runs))
                if len(runs) == at:
                    raise kind('here')
                return torch.tanh(x * 2)
            return function
        for kind in (Mine, KeyboardInterrupt, ValueError):
            x = torch.ones(2, requires_grad=True)
            with self.assertRaisesRegex(kind, 'here'):
                elixir.checkpoint(raises(1, kind), x)
            with self.assertRaisesRegex(kind, 'here'):
                elixir.checkpoint(raises(2, kind), x).sum().backward()
        with self.refused('inputs[0] in place'):
            elixir.checkpoint(lambda x: x.mul_(2), torch.ones(2))
        with self.refused('preserve_rng_state=False'):
            elixir.checkpoint(torch.tanh, x, preserve_rng_state=False)

    def test_tensors_of_a_partial_are_arguments(self):
        """Two regions read one tensor with a history, as layers with attention across do."""
        import functools
        results = []
        for checkpoint in (elixir.checkpoint, functools.partial(torch_checkpoint, use_reentrant=False)):
            torch.manual_seed(5)
            given, x = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
            memory, y = given * 2, x
            for _ in range(2):
                y = checkpoint(functools.partial(lambda a, memory: torch.tanh(a * memory), memory=memory), y)
            y.sum().backward()
            results.append((given.grad, x.grad))
        for ours, theirs in zip(*results, strict=True):
            self.assertTrue(torch.equal(ours, theirs))

    def test_torch_has_the_layers_whose_inner_values_a_loss_reads(self):
        """A router's loss, which transformers takes from inside of the layers."""
        norms = {}
        for activations in (None, 'recompute', 'keep'):
            model = small_model('mixtral')
            model.config.output_router_logits = True
            optimizer = elixir.AdamW(model, lr=1e-3, **({'activations': activations} if activations else {}))
            model.activation_checkpointing_enable()
            model.train()
            tokens = torch.arange(32).reshape(2, 16) % 7
            output = model(input_ids=tokens, labels=tokens)
            self.assertTrue(output.aux_loss.requires_grad, activations)
            output.loss.backward()
            optimizer.step()
            norms[activations] = masters_hash(optimizer)
        self.assertEqual(len(set(norms.values())), 1, norms)

    def test_a_model_is_copied_and_pickled_with_its_layers_function(self):
        import copy
        import pickle
        model = small_model('llama')
        model.activation_checkpointing_enable()
        model.train()
        copied = copy.deepcopy(model)
        pickle.loads(pickle.dumps(model.model.layers[0]))  # the whole model has hooks that do not pickle
        del model
        tokens = torch.zeros(1, 8, dtype=torch.int64)
        copied(input_ids=tokens, labels=tokens).loss.backward()

    def test_a_function_that_is_forgotten_is_let_go(self):
        import gc
        import weakref
        block = Block()
        seen = weakref.ref(block)
        made, _ = elixir.checkpoint(block, torch.ones(2, 16, requires_grad=True), {'add': torch.ones(2, 16)})
        del block, made
        gc.collect()
        self.assertIsNone(seen())

    def with_trainer(self, kind, activations, **arguments):
        model = small_model(kind)
        options = {'activations': activations} if activations else {}
        optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, rcache_blocks=4, **options)
        losses, _, _ = trained(model, optimizer, self.folder, max_steps=10, **arguments)
        return losses, masters_hash(optimizer), optimizer.stats()['recomputed_regions']

    def test_trainers_layers_keep_what_the_options_say(self):
        """transformers' own function ran in none of them: it would keep nothing."""
        for kind, again in (('llama', {'recompute': 2, 'products:1': 2, 'products:2': 2, 'keep': 0, 'host': 2}),
                            ('gpt2', {'recompute': 2, 'keep': 0, 'host:1GiB': 2}),
                            ('mixtral', {'recompute': 2, 'products:2': 2, 'host': 2})):
            plain = self.with_trainer(kind, 'recompute')
            self.assertEqual(plain[2], 0)
            # Without `activations`, transformers' own function.
            self.assertEqual(self.with_trainer(kind, None, activation_checkpointing=True)[2], 0)
            for activations, regions in again.items():
                with self.subTest(kind=kind, activations=activations):
                    self.assertEqual(self.with_trainer(kind, activations, activation_checkpointing=True),
                                     (*plain[:2], regions))

    def test_offload_means_host(self):
        """With the bits of layers that keep their activations, and copies that the optimizer counts."""
        tokens = torch.arange(32).reshape(2, 16) % 7

        def hash_and_moved(offload, **options):
            torch.manual_seed(1)
            model = small_model('llama', num_hidden_layers=4)
            if offload is not None:
                model.activation_checkpointing_enable(offload=offload)
            optimizer = elixir.AdamW(model, lr=1e-3, **options)
            model.train()
            for _ in range(3):
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            stats = optimizer.stats()
            self.assertEqual(stats['activation_d2h_bytes'] > 0, stats['activation_h2d_bytes'] > 0)
            return masters_hash(optimizer), stats['activation_h2d_bytes'] > 0
        plain, moved = hash_and_moved(None)
        self.assertFalse(moved)
        self.assertEqual(hash_and_moved(True), (plain, True))
        self.assertEqual(hash_and_moved(True, activations='auto'), (plain, True))
        self.assertEqual(hash_and_moved(True, activations='recompute'), (plain, False))
        self.assertEqual(hash_and_moved(False, activations='host:8MiB'), (plain, True))
        self.assertEqual(hash_and_moved(False), (plain, False))

    def test_inputs_that_cannot_go_stay(self):
        """Views of parameters, tensors of subclasses, and all beside hooks on what is saved."""
        from torch.testing._internal.two_tensor import TwoTensor

        def hash_of(activations, hooks):
            torch.manual_seed(2)
            block = torch.nn.Linear(16, 16)
            model = torch.nn.ModuleList([block])
            model.position = torch.nn.Parameter(torch.randn(8, 16))
            optimizer = elixir.AdamW(model, lr=1e-2, activations=activations)
            optimizer.start()
            for _ in range(3):
                x = torch.randn(6, 16, requires_grad=True)
                with torch.autograd.graph.saved_tensors_hooks(*hooks):
                    for _ in range(4):
                        x = elixir.checkpoint(lambda x, at: torch.tanh(block(x) + at), x * 2, model.position[:6])
                x.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return masters_hash(optimizer)
        for hooks in ((lambda tensor: tensor, lambda tensor: tensor), (torch.clone, torch.clone)):
            self.assertEqual(hash_of('host', hooks), hash_of('recompute', hooks))
        both = TwoTensor(torch.ones(4, 4), torch.ones(4, 4)).requires_grad_() * 2
        kept = torch.nn.Linear(4, 4)
        optimizer = elixir.AdamW(kept, lr=1e-2, activations='host')
        optimizer.start()
        y = elixir.checkpoint(torch.tanh, both)
        for _ in range(3):
            y = elixir.checkpoint(torch.tanh, y * 1)
        self.assertTrue(torch.equal(y.a, y.b))

    def test_offload_leaves_a_given_plan_as_it_is(self):
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        path = f'{self.folder}/plan.json'
        model = small_model('llama', num_hidden_layers=4)
        model.activation_checkpointing_enable()
        plan = elixir.plan(model, {'input_ids': tokens, 'labels': tokens}, gpu_memory='8GiB', activations='recompute')
        plan.save(path)
        for layers, options in ((4, {'plan': path}), (1, {'gpu_memory': '8GiB'})):
            model = small_model('llama', num_hidden_layers=layers)
            model.activation_checkpointing_enable(offload=True)
            model.train()
            optimizer = elixir.AdamW(model, lr=1e-3, **options)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            self.assertEqual(optimizer.stats()['activation_d2h_bytes'], 0)

    def test_every_second_layer(self):
        model = small_model('llama', num_hidden_layers=4)
        optimizer = elixir.AdamW(model, lr=1e-3, activations='recompute')
        model.activation_checkpointing_enable(every_n_layers=2)
        model.train()
        tokens = torch.zeros(1, 8, dtype=torch.int64)
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(optimizer.stats()['recomputed_regions'], 2)

    def test_a_plan_chooses(self):
        """Much memory for a model whose compute binds: nothing runs twice."""
        model = small_model('llama', num_hidden_layers=4, hidden_size=128)
        model.activation_checkpointing_enable()
        model.train()
        tokens = torch.zeros(2, 64, dtype=torch.int64)
        plan = elixir.plan(model, {'input_ids': tokens, 'labels': tokens}, gpu_memory='8GiB', activations='auto')
        self.assertEqual(sum(plan.values['regions'].values()), 4)
        self.assertEqual(plan.values['regions']['keep_all'], 4, plan)
        recomputing = elixir.plan(model, {'input_ids': tokens, 'labels': tokens}, gpu_memory='8GiB',
                                  activations='recompute')
        self.assertEqual(recomputing.values['regions']['recompute'], 4)

    def test_a_plan_beside_a_pass_without_backward(self):
        model = small_model('llama')
        model.activation_checkpointing_enable()
        model.train()
        tokens = torch.zeros(2, 16, dtype=torch.int64)

        def kept():
            return elixir.plan(model, {'input_ids': tokens, 'labels': tokens}, gpu_memory='8GiB',
                               activations='keep').values['kept_bytes']
        alone = kept()
        held = [elixir.checkpoint(torch.tanh, torch.ones(2, requires_grad=True)) for _ in range(3)]
        self.assertEqual(kept(), alone)
        self.assertGreater(alone, 0)
        del held

    def test_other_words_are_refused(self):
        model = small_model('llama')
        for wrong in ('products:0', 'products:many', 'some'):
            with self.assertRaisesRegex(ValueError, 'activations='):
                elixir.AdamW(model, lr=1e-3, activations=wrong).start()


if __name__ == '__main__':
    unittest.main()
