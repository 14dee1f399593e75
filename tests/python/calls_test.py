"""What a Python program calls: equal to torch, or an error that names the parameter and the remedy. Each row of
docs/python.md's tables is a test here."""

import copy
import gc
import io
import os
import pickle
import unittest
import weakref

import python_case
from python_case import PythonCase, masters_hash, net, net_loss

python_case.need('numpy')

import torch  # noqa: E402
import elixir  # noqa: E402


def held(seed=1, **options):
    """A model, its optimizer, and that its parameters are with elixird."""
    model = net(seed)
    optimizer = elixir.AdamW(model, lr=1e-2, **options)
    optimizer.start()
    return model, optimizer


def step(model, optimizer, number=0):
    net_loss(model, number).backward()
    optimizer.step()
    optimizer.zero_grad()


class Calls(PythonCase):
    def both(self, program, **options):
        """Runs it with torch.optim.AdamW and with elixir.AdamW; weights and what it returns are equal."""
        results = []
        for own in (False, True):
            model = net()
            groups = [{'params': [p for n, p in model.named_parameters() if n.endswith('weight')]},
                      {'params': [p for n, p in model.named_parameters() if n.endswith('bias')], 'weight_decay': 0.0}]
            optimizer = (elixir.AdamW(groups, model=model, lr=1e-2, **options) if own else
                         torch.optim.AdamW(groups, lr=1e-2))
            told = program(model, optimizer)
            results.append(({name: value.clone() for name, value in model.state_dict().items()}, told))
        for name, theirs in results[0][0].items():
            self.assertLess((theirs - results[1][0][name]).abs().max().item(), 1e-5, name)
        if results[0][1] is not None:
            for theirs, ours in zip(results[0][1], results[1][1]):
                self.assertAlmostEqual(theirs, ours, delta=1e-5 * max(1, abs(theirs)))

    # ---- steps ----

    def test_steps_with_a_scheduler_and_changed_groups(self):
        def program(model, optimizer):
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-2, total_steps=12)  # moves betas, too
            losses = []
            for number in range(10):
                loss = net_loss(model, number)
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=number % 2 == 0)
                optimizer.param_groups[1]['weight_decay'] = 0.01 * number
                losses.append(loss.item())
            return losses
        self.both(program)

    def test_a_closure(self):
        def program(model, optimizer):
            def closure():
                optimizer.zero_grad()
                loss = net_loss(model, 3)
                loss.backward()
                return loss
            return [optimizer.step(closure).item() for _ in range(5)]
        self.both(program)

    def test_clipping_whose_norm_is_read_after_the_step(self):
        def program(model, optimizer):
            norms = []
            for number in range(6):
                net_loss(model, number).backward()
                limit = 0.1 * (number + 1) if number % 3 else float('inf')
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                optimizer.zero_grad()
                norms += [float(norm), (norm * 2).item(), torch.stack([norm, norm]).sum().item()]
            return norms
        for update in ('deferred', 'early', 'sync'):
            self.both(program, update=update)

    def test_a_norm_that_is_read_too_early(self):
        model, optimizer = held()
        net_loss(model, 0).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.assertIn('after step()', repr(norm))
        with self.refused('known after optimizer.step()'):
            norm.item()
        optimizer.step()
        self.assertGreater(norm.item(), 0)

    def test_clipping_in_other_ways(self):
        model, optimizer = held()
        net_loss(model, 0).backward()
        with self.refused('norm_type=1', 'L2 norm'):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)
        with self.refused('error_if_nonfinite', 'skips'):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        with self.refused('1 of the 6 trained parameters', 'model.parameters()'):
            torch.nn.utils.clip_grad_norm_(model[0].weight, 1.0)
        with self.refused('clip_grad_value_', 'register_hook'):
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        with self.assertRaisesRegex(RuntimeError, "gradient of '0.weight'.*clip_norm"):
            model[0].weight.grad.norm()
        optimizer.zero_grad()

    def test_sixty_four_groups(self):
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(32)))
        groups = [{'params': [p], 'lr': 1e-3 * (i + 1)} for i, p in enumerate(model.parameters())]
        optimizer = elixir.AdamW(groups, model=model)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        before = model[31].bias.detach().clone()
        optimizer.param_groups[63]['lr'] = 0.0
        optimizer.param_groups[63]['weight_decay'] = 0.0
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        self.assertTrue(torch.equal(model[31].bias.detach().clone(), before))

    # ---- values ----

    def test_state_dict_has_copies_and_ties(self):
        model = net()
        model[3].bias = model[3].bias
        model.tied = model[0].weight
        optimizer = elixir.AdamW(model, lr=1e-2)
        step(model, optimizer)
        state = model.state_dict()
        self.assertEqual(state['0.weight'].data_ptr(), state['tied'].data_ptr())
        for name, value in state.items():
            self.assertTrue(torch.equal(value, dict(model.named_parameters(remove_duplicate=False))[name].detach().clone()))
        kept = state['0.weight'].clone()
        step(model, optimizer, 1)
        self.assertTrue(torch.equal(state['0.weight'], kept))
        torch.save(model.state_dict(), io.BytesIO())
        last = model.state_dict()
        copied = weakref.ref(last['3.bias'])
        del last
        self.assertIsNone(copied())  # nothing else keeps a copy
        self.assertEqual(len(model.state_dict(destination={})), len(list(model.state_dict())))
        self.assertTrue(torch.equal(model[0].state_dict()['weight'], model.state_dict()['0.weight']))

    def test_load_state_dict(self):
        model, optimizer = held()
        step(model, optimizer)
        other = net(seed=5).state_dict()
        result = model.load_state_dict(other)
        self.assertEqual((result.missing_keys, result.unexpected_keys), ([], []))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, other[name]), name)
        part = {'0.weight': torch.zeros(32, 16), 'strange': torch.zeros(1)}
        result = model.load_state_dict(part, strict=False)
        self.assertEqual(result.unexpected_keys, ['strange'])
        self.assertNotIn('0.weight', result.missing_keys)
        self.assertIn('0.bias', result.missing_keys)
        self.assertEqual(model[0].weight.detach().abs().sum().item(), 0)
        with self.assertRaisesRegex(RuntimeError, 'size mismatch for 0.weight'):
            model.load_state_dict({**other, '0.weight': torch.zeros(3, 3)})
        with self.assertRaisesRegex(RuntimeError, 'Missing key'):
            model.load_state_dict({})
        step(model, optimizer, 1)

    def test_moments_survive_load_state_dict(self):
        def program(model, optimizer):
            for number in range(4):
                step(model, optimizer, number)
                if number == 1:
                    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        self.both(program)

    def test_casting_and_moving(self):
        model, optimizer = held()
        self.assertIs(model.to('cpu'), model)
        self.assertIs(model.float(), model)
        for change in (model.half, model.bfloat16, model[0].double, lambda: model.to(torch.bfloat16)):
            with self.refused('elixir.AdamW holds it', 'dtype='):
                change()
        with self.refused('meta', 'device='):
            model.to('meta')
        self.assertEqual(optimizer.device, torch.device('cpu'))
        step(model, optimizer)

    def test_memory_of_a_parameter_outside_a_scope(self):
        """No way to its bytes but an error with its name, also of a view."""
        model, optimizer = held(rcache_blocks=4)
        model(torch.ones(2, 16))  # gathered, then let go: the blocks hold something
        reads = {
            'data_ptr()': lambda p: p.data_ptr(), 'numpy()': lambda p: p.detach().numpy(),
            'DLPack': lambda p: torch.from_dlpack(p.detach()), 'pickling': lambda p: torch.save(p, io.BytesIO()),
        }
        for call, read in reads.items():
            with self.subTest(call):
                with self.refused(f"{call} of parameter '3.weight'", 'elixir.gathered(parameter)', 'clone()'):
                    read(model[3].weight)
                with elixir.gathered(model[3].weight):
                    read(model[3].weight)
        for call, read in (('numpy()', lambda p: p.detach().__array__()),
                           ('DLPack', lambda p: torch.utils.dlpack.to_dlpack(p.detach())),
                           ('pickling', lambda p: pickle.dumps(model))):
            with self.subTest(call), self.refused(f'{call} of parameter', 'elixir.gathered(parameter)'):
                read(model[3].weight)
        whole = torch.UntypedStorage(model[3].weight.untyped_storage().nbytes())
        for call, read in (('__getitem__', lambda s: s[0]), ('clone', lambda s: s.clone()), ('tolist', lambda s: s.tolist()),
                           ('copy_', whole.copy_), ('data_ptr', lambda s: s.data_ptr()),
                           ('share_memory_', lambda s: s.share_memory_())):
            with self.subTest(call), self.refused(f'untyped_storage().{call}()', 'the chunk that parameter'):
                read(model[3].weight.untyped_storage())
        with self.refused("numpy() of parameter '3.bias'"):
            model[3].bias[1:].detach().numpy()
        with elixir.gathered(model.parameters()):
            self.assertEqual(model[0].weight.detach().numpy().shape, (32, 16))
        ordinary = torch.arange(3.0)
        self.assertEqual((ordinary.tolist(), ordinary.numpy().sum(), ordinary.untyped_storage()[0]), ([0, 1, 2], 3, 0))
        optimizer.release()
        self.assertEqual(len(model[3].bias.tolist()), 4)

    def test_values_that_are_shown_are_right_while_blocks_hold_others(self):
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
        optimizer = elixir.AdamW(model, rcache_blocks=2, chunk_numel=16 * 17)
        model(torch.ones(1, 16))  # the blocks hold the last chunks
        state = model.state_dict()
        for name, parameter in model.named_parameters():
            self.assertEqual(parameter.tolist(), state[name].tolist(), name)
            self.assertEqual(repr(parameter), repr(torch.nn.Parameter(state[name])), name)
        self.assertEqual(model[0].weight.t()[3].tolist(), state['0.weight'].t()[3].tolist())
        self.assertEqual(optimizer._native.plan_summary()['chunks'], 8)

    def test_single_values_and_states(self):
        model, optimizer = held(keep_gradients=True)
        net_loss(model, 0).backward()
        self.assertEqual(optimizer.gradient(model[0].weight).shape, (32, 16))
        optimizer.step()
        self.assertTrue(torch.equal(optimizer.value(model[0].weight), model[0].weight.detach().clone()))
        states = optimizer.full_state_dict()
        self.assertEqual(set(states), {name for name, _ in model.named_parameters()})
        self.assertEqual(states['0.weight']['step'], 1)
        self.assertEqual(states['0.weight']['exp_avg'].shape, (32, 16))
        optimizer.set_parameters({'0.bias': torch.ones(32)})
        self.assertEqual(model[0].bias.detach().sum().item(), 32)

    # ---- what is in the optimizer ----

    def test_its_state_dict_is_small_and_comes_back(self):
        model, optimizer = held()
        step(model, optimizer)
        state = optimizer.state_dict()
        self.assertLess(len(pickle.dumps(state)), 10_000)
        optimizer.load_state_dict(copy.deepcopy(state))  # as accelerate does
        state['param_groups'][0]['lr'] = 0.5
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[0]['lr'], 0.5)
        with self.refused('not Elixir', 'elixir-convert'):
            optimizer.load_state_dict(torch.optim.AdamW(net().parameters()).state_dict())
        with self.assertRaisesRegex(TypeError, r'elixir\.save'):
            pickle.dumps(optimizer)

    def test_parameters_that_are_in_no_group(self):
        model = net()
        with self.refused("'3.weight', '3.bias'", 'in no group', 'leave_out='):
            elixir.AdamW([{'params': list(model[0].parameters()) + list(model[1].parameters())}], model=model)
        elixir.AdamW([{'params': list(model[0].parameters()) + list(model[1].parameters())}], model=model,
                     leave_out=['3.weight', '3.bias'])
        with self.refused('without names', 'model='):
            elixir.AdamW(model.parameters())

    def test_named_parameters_are_enough(self):
        model = net()
        optimizer = elixir.AdamW(model.named_parameters(), lr=1e-2)
        optimizer.start()
        before = net_loss(model, 0).item()
        for _ in range(5):
            step(model, optimizer)
        self.assertLess(net_loss(model, 0).item(), before)

    def test_parameters_that_come_later(self):
        model, optimizer = held()
        step(model, optimizer)
        model.extra = torch.nn.Linear(4, 4)
        net_loss(model, 1).backward()
        with self.refused("'extra.weight', 'extra.bias'", 'would not be trained', 'build elixir.AdamW'):
            optimizer.step()
        del model.extra
        optimizer.step()

    def test_add_param_group(self):
        model, optimizer = held()
        step(model, optimizer)
        optimizer.add_param_group({'params': [model[0].bias], 'lr': 0.0, 'weight_decay': 0.0})
        before = model[0].bias.detach().clone()
        step(model, optimizer, 1)
        self.assertTrue(torch.equal(model[0].bias.detach().clone(), before))
        with self.refused('not in the first group'):
            optimizer.add_param_group({'params': [torch.nn.Parameter(torch.zeros(3))]})

    def test_several_types_of_parameters(self):
        model = net()
        model[3].to(torch.bfloat16)
        with self.refused('several types', 'torch.bfloat16'):
            elixir.AdamW(model).start()

    def test_arguments_that_there_are_not(self):
        model = net()
        with self.assertRaisesRegex(TypeError, "no argument 'rcache_block'.*rcache_blocks"):
            elixir.AdamW(model, rcache_block=4)
        for wrong, texts in (({'dtype': 'fp8'}, ('fp8', 'torch.bfloat16')), ({'device': 'tpu'}, ('tpu',)),
                             ({'gpu_memory': '24 gigs'}, ('24GiB',)), ({'lr': -1.0}, ('lr = -1.0', 'at least 0'))):
            with self.subTest(wrong), self.assertRaises((elixir.Error, RuntimeError)) as raised:
                elixir.AdamW(model, **wrong).start()
            for text in texts:
                self.assertIn(text, str(raised.exception))
        with self.assertRaisesRegex(ValueError, "update='soon' is not one of 'deferred'"):
            elixir.AdamW(model, update='soon').start()
        with self.refused('the model of this optimizer is gone'):
            elixir.AdamW(net()).start()

    def test_wrappers_that_cannot_be_followed(self):
        from torch.distributed import fsdp
        model, optimizer = held()
        for wrap, texts in (
                (torch.nn.parallel.DistributedDataParallel, ('DistributedDataParallel', 'sums the gradients')),
                (torch.nn.DataParallel, ('DataParallel', 'torchrun')), (torch.compile, ('torch.compile', 'uncompiled')),
                (lambda module: module.compile(), ('Module.compile', 'uncompiled')),
                (fsdp.FullyShardedDataParallel, ('FullyShardedDataParallel', 'shards the states')),
                (fsdp.fully_shard, ('fully_shard', 'shards the states')),
                (lambda module: torch.compile(torch.nn.Sequential(module)), ('torch.compile', 'holds'))):
            with self.subTest(texts[0]), self.refused(*texts):
                wrap(model)
        step(model, optimizer)
        compiled = net()
        compiled.compile()
        for wrapped, name in ((torch.compile(net()), 'torch.compile'), (compiled, 'torch.compile'),
                              (torch.nn.DataParallel(net()), 'DataParallel')):
            with self.refused(f'the model is wrapped by {name}'):
                elixir.AdamW(wrapped)

    def test_a_gradient_scaler(self):
        model, optimizer = held()
        scaler = torch.amp.GradScaler('cpu')
        scaler.scale(net_loss(model, 0)).backward()
        for call in (scaler.unscale_, scaler.step):
            with self.refused('GradScaler', 'dtype="bf16"'):
                call(optimizer)
        optimizer.zero_grad()
        off = torch.amp.GradScaler('cpu', enabled=False)
        off.scale(net_loss(model, 0)).backward()
        off.step(optimizer)

    def test_the_norm_is_that_of_double_precision(self):
        model, optimizer = held(keep_gradients=True)
        for number in range(3):
            net_loss(model, number).backward()
            squares = sum(optimizer.gradient(p).double().square().sum() for p in model.parameters())
            optimizer.step()
            norm = optimizer.outcome()['grad_norm']
            self.assertLess(abs(norm - squares.sqrt().item()), 3e-6 * norm)

    def test_a_backward_pass_beside_the_model(self):
        model = net()
        optimizer = elixir.AdamW(model)
        model[3](torch.ones(2, 32)).sum().backward()
        with self.refused('optimizer.start()'):
            optimizer.step()

    # ---- torch's ways ----

    def test_copies_threads_and_functions(self):
        model, optimizer = held()
        step(model, optimizer)
        other = copy.deepcopy(model)
        self.assertTrue(torch.equal(other[0].weight, model[0].weight.detach().clone()))
        other.half()  # an ordinary model
        inputs = torch.ones(2, 16)
        called = torch.func.functional_call(model, dict(model.named_parameters()), (inputs,))
        self.assertTrue(torch.equal(called, model(inputs)))
        with torch.autocast('cpu', torch.bfloat16):
            self.assertEqual(model(inputs).dtype, torch.bfloat16)
        with torch.profiler.profile(record_shapes=True, with_stack=True) as profile:
            step(model, optimizer, 1)
        self.assertGreater(len(profile.key_averages()), 3)
        self.assertIn('Parameter containing', repr(model[0].weight))

    def test_a_model_under_init(self):
        torch.manual_seed(3)
        with elixir.init():
            model = net()
        self.assertTrue(model[0].weight.is_meta)
        expected = elixir.materialise(model[0].weight)
        optimizer = elixir.AdamW(model, lr=1e-2)
        optimizer.start()
        self.assertTrue(torch.equal(model[0].weight.detach().clone(), expected))
        step(model, optimizer)

    def test_saving_and_loading(self):
        model, optimizer = held()
        step(model, optimizer)
        folder = os.path.join(self.folder, 'a', 'saved')
        report = elixir.save(optimizer, folder, files={'config.json': '{}'}, program='mine')
        self.assertEqual(report['step'], 1)
        before = masters_hash(optimizer)
        step(model, optimizer, 1)
        whole = masters_hash(optimizer)
        loaded = elixir.load(optimizer, folder)
        self.assertEqual((loaded['step'], loaded['program'], masters_hash(optimizer)), (1, 'mine', before))
        step(model, optimizer, 1)
        self.assertEqual(masters_hash(optimizer), whole)
        other = net(seed=9)
        resumed = elixir.AdamW(other, lr=1e-2)
        self.assertTrue(elixir.load(resumed, folder)['has_states'])
        step(other, resumed, 1)
        self.assertEqual(masters_hash(resumed), whole)
        with self.refused('exists'):
            elixir.save(optimizer, folder)
        with self.refused('there is no folder'):
            elixir.load(optimizer, folder + 'x')
        saving = elixir.save(optimizer, folder + '2', wait=False)
        self.assertEqual(saving.wait()['step'], 2)
        self.assertTrue(saving.done())

    def test_release(self):
        model, optimizer = held()
        step(model, optimizer)
        before = model.state_dict()['0.weight']
        optimizer.release()
        self.assertTrue(torch.equal(model[0].weight, before))
        model.half()
        self.assertEqual(model[0].weight.dtype, torch.float16)

    def test_errors_have_codes(self):
        model, optimizer = held()
        with self.assertRaises(elixir.Error) as raised:
            optimizer.value(torch.zeros(3))
        self.assertEqual((raised.exception.code, raised.exception.exit_code), ('invalid_argument', 2))
        self.assertIsInstance(pickle.loads(pickle.dumps(raised.exception)), elixir.Error)

    # ---- lifetimes ----

    def test_the_model_keeps_the_optimizer_and_nothing_keeps_the_model(self):
        model = net()
        optimizer = weakref.ref(elixir.AdamW(model, lr=1e-2))
        net_loss(model, 0).backward()
        gc.collect()
        self.assertIsNotNone(optimizer())
        of_model = weakref.ref(model)
        del model
        gc.collect()
        self.assertIsNone(of_model())
        self.assertIsNone(optimizer())


if __name__ == '__main__':
    unittest.main()
