"""What others make of a checkpoint, and Elixir of theirs: transformers, safetensors, torch's
distributed checkpoint, torch.load() and torch's AdamW. It runs with the Python of
build/foreign_venv, which scripts/foreign_setup.sh makes, or with the caller's where ELIXIR_FOREIGN_PYTHON is set."""

import json
import os
import re
import sys

import harness
from harness import BIN, NIGHTLY, REPOSITORY, TEXT, TINY, program

VENV = os.path.join(REPOSITORY, 'build', 'foreign_venv')
PYTHON = os.path.join(VENV, 'bin', 'python')

if 'ELIXIR_FOREIGN_PYTHON' not in os.environ:
    if not os.path.exists(os.path.join(VENV, 'installed')):
        harness.skip_all('transformers is not here; scripts/foreign_setup.sh installs it (scripts/test.sh does)')
    if os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        os.execv(PYTHON, [PYTHON, '-B', *sys.argv])

os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_VERBOSITY='error', HF_HUB_DISABLE_PROGRESS_BARS='1',
                  OMP_WAIT_POLICY='PASSIVE')

import numpy  # noqa: E402  (all of these are in that Python alone)
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import transformers  # noqa: E402
import xxhash  # noqa: E402
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict,
    set_optimizer_state_dict)
from transformers import AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
STEPS_PROGRAM = os.path.realpath(os.path.join(BIN, '..', 'tests', 'foreign_steps'))
# And the type in which each is looked at, but for nightly runs.
FAMILIES = {'gpt2-nano': ('bf16',), 'llama-nano': ('fp32',), 'opt-nano': ('bf16',)}


def names(model):
    return [name for name, _ in model.named_parameters()]


def tensors_of(folder):
    """Of all .safetensors files of a folder, read without transformers."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith('.safetensors'):
            found.update(safetensors.torch.load_file(os.path.join(folder, name)))
    return found


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else bytes(
        tensor.reshape(1).view(torch.uint8).numpy())


class Foreign(harness.ElixirTest):
    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def convert(self, *words):
        return self.succeed(program('elixirctl'), 'checkpoint', words)

    def assert_equal_bits(self, ours, theirs, what):
        self.assertEqual(set(ours), set(theirs), what)
        for name, tensor in ours.items():
            self.assertEqual(tensor.dtype, theirs[name].dtype, f'{what}: {name}')
            self.assertEqual(bits(tensor), bits(theirs[name]), f'{what}: {name}')

    # ---- what elixir-train wrote ----

    def train(self, model, dtype):
        """The checkpoint of three steps, its run, and the folder of --export."""
        self.environment['ELIXIR_RUNTIME_DIR'] = self.runtime
        runs, export = self.path(f'{model}-{dtype}'), self.path(f'{model}-{dtype}-export')
        finished = self.succeed(
            self.launch(1, program('elixir-train')), TINY, '--model', model, '--dtype', dtype, '--steps', '3',
            '--warmup-steps', '0', '--checkpoints', runs, '--export', export, '--checksum', limit_s=240)
        return os.path.join(runs, 'step-000000003'), finished, export

    def test_checkpoints_open_elsewhere_with_every_bit(self):
        both = ('bf16', 'fp32')
        for model, dtypes in FAMILIES.items():
            for dtype in both if NIGHTLY else dtypes:
                with self.subTest(model=model, dtype=dtype):
                    checkpoint, finished, export = self.train(model, dtype)
                    self.look_with_transformers(checkpoint, export)
                    masters = self.look_at_masters(checkpoint, dtype, finished.checksum)
                    self.look_with_torch_load(checkpoint)
                    self.look_with_distributed_checkpoint(checkpoint, masters)

    def look_with_transformers(self, checkpoint, export):
        stored = tensors_of(checkpoint)
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype='auto')
        opened = dict(model.named_parameters())  # a tied one once
        self.assert_equal_bits(opened, {name: stored[name] for name in opened}, 'from_pretrained')
        self.assertLessEqual(set(opened), set(stored))
        if 'lm_head.weight' not in stored:
            self.assertIs(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
        self.assert_equal_bits(stored, tensors_of(export), '--export')
        exported = AutoModelForCausalLM.from_pretrained(export, dtype='auto')
        self.assert_equal_bits(dict(exported.named_parameters()), opened, '--export, opened')

    def look_at_masters(self, checkpoint, dtype, checksum):
        """Those that elixird has have the hash that the run printed."""
        path = f'{os.path.dirname(checkpoint)}.safetensors'
        self.convert('export', checkpoint, '--masters', path)
        masters = safetensors.torch.load_file(path)
        digest = xxhash.xxh64()
        for name in sorted(masters, key=str.encode):
            digest.update(bits(masters[name]))
        self.assertEqual(digest.hexdigest(), checksum)
        stored = tensors_of(checkpoint)
        for name, master in masters.items():  # what is trained in is the master, rounded
            self.assertEqual(master.dtype, torch.float32)
            self.assertTrue(torch.equal(master.to(stored[name].dtype), stored[name]), name)
        digest.update(b'one more byte')
        self.assertNotEqual(digest.hexdigest(), checksum)
        if dtype == 'bf16':  # they hold more than the parameters
            self.assertFalse(all(torch.equal(masters[name], stored[name].float()) for name in masters))
        return masters

    def look_with_torch_load(self, checkpoint):
        path = f'{os.path.dirname(checkpoint)}.pt'
        self.convert('export', checkpoint, '--torch', path)
        states = torch.load(path, weights_only=True)
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        # Two groups, as the run has them, each in torch's own order.
        named = list(model.named_parameters())
        decayed = [(name, parameter) for name, parameter in named if parameter.dim() > 1]
        others = [(name, parameter) for name, parameter in named if parameter.dim() == 1]
        self.assertEqual(states['param_names'], [name for name, _ in decayed + others])
        stored = tensors_of(os.path.join(checkpoint, 'optimizer'))
        for number, name in enumerate(states['param_names']):
            self.assert_equal_bits(states['state'][number],
                                   {field: stored[f'state.{name}.{field}']
                                    for field in ('step', 'exp_avg', 'exp_avg_sq')}, name)
        optimizer = torch.optim.AdamW([{'params': [parameter for _, parameter in group]}
                                       for group in (decayed, others)])
        optimizer.load_state_dict(states)
        self.assertEqual([group['weight_decay'] for group in optimizer.param_groups], [0.1, 0])
        first = optimizer.state[model.get_input_embeddings().weight]
        self.assertEqual(first['step'].item(), 3)

    def look_with_distributed_checkpoint(self, checkpoint, masters):
        model = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(checkpoint),
                                                 dtype=next(iter(tensors_of(checkpoint).values())).dtype)
        once = dict(model.named_parameters())
        wanted = {name: value for name, value in get_model_state_dict(model).items() if name in once}
        dcp.load(wanted, storage_reader=HuggingFaceStorageReader(checkpoint))
        stored = tensors_of(checkpoint)
        for name, parameter in model.named_parameters():
            self.assertEqual(bits(parameter.detach()), bits(stored[name]), name)
        # The states of FP32 parameters, which the masters are: torch rounds them to the parameter's.
        model = model.float()
        set_model_state_dict(model, masters, options=StateDictOptions(strict=False))  # a tied one once
        optimizer = torch.optim.AdamW(model.parameters())
        flat = get_optimizer_state_dict(model, optimizer, options=FLAT)
        wanted = {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}
        dcp.load(wanted, storage_reader=HuggingFaceStorageReader(os.path.join(checkpoint, 'optimizer')))
        flat.update(wanted)
        set_optimizer_state_dict(model, optimizer, flat, options=FLAT)
        stored = tensors_of(os.path.join(checkpoint, 'optimizer'))
        for name, parameter in model.named_parameters():
            for field in ('step', 'exp_avg', 'exp_avg_sq'):
                self.assertEqual(bits(optimizer.state[parameter][field]),
                                 bits(stored[f'state.{name}.{field}']), f'{name}: {field}')

    # ---- what others wrote ----

    def hugging_face_folder(self, real=False):
        """GPT-2 with random weights, small or of the real size; biases and norms random, too."""
        sizes = {} if real else {'n_embd': 96, 'n_layer': 3, 'n_head': 4, 'n_positions': 64}
        config = transformers.GPT2Config(vocab_size=50257 if real else 256, resid_pdrop=0, embd_pdrop=0,
                                         attn_pdrop=0, bos_token_id=0, eos_token_id=0, **sizes)
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        folder = self.path('real' if real else 'small')
        model.save_pretrained(folder)
        return model, folder

    def tokens(self, model, steps=1, length=48):
        generator = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, model.config.vocab_size, (steps, 2, length), generator=generator)
        tokens.numpy().tofile(self.path('tokens'))
        return tokens

    def our_steps(self, folder, steps, *more):
        """Losses, and logits after them."""
        finished = self.succeed(STEPS_PROGRAM, folder, self.path('tokens'), '2', str(steps), self.path('logits'),
                                more, limit_s=600)
        logits = torch.from_numpy(numpy.fromfile(self.path('logits'), dtype=numpy.float32))
        losses = [float(word) for word in re.findall(r'^loss (.*)$', finished.output, re.M)]
        return losses, logits

    def assert_logits_are(self, model, folder, tokens):
        with torch.no_grad():
            theirs = model.eval()(tokens[0]).logits.flatten()
        _, ours = self.our_steps(folder, 0)
        self.assertGreater(theirs.std().item(), 0.05)  # they say something
        self.assertLess((ours - theirs).abs().max().item(), 1e-5)

    def look_at_gpt2(self, real):
        model, folder = self.hugging_face_folder(real)
        tokens = self.tokens(model)
        self.assert_logits_are(model, folder, tokens)
        runs = self.path('runs')
        self.succeed(self.launch(1, program('elixir-train')), TINY, TEXT, '--bytes', '--init', folder, '--steps',
                     '10', '--lr', '1e-4', '--checkpoints', runs, limit_s=600)
        checkpoint = os.path.join(runs, 'step-000000010')
        trained = AutoModelForCausalLM.from_pretrained(checkpoint)
        self.assertNotEqual(bits(trained.transformer.wte.weight.detach()),
                            bits(model.transformer.wte.weight.detach()))
        self.assert_logits_are(trained, checkpoint, tokens)

    def test_gpt2_of_hugging_face_says_the_same_before_and_after_training(self):
        self.look_at_gpt2(real=False)
        self.stop_idle_elixird()

    def test_gpt2_of_the_real_size(self):
        if not NIGHTLY:
            self.skipTest('nightly: 124 M parameters')
        self.look_at_gpt2(real=True)
        self.stop_idle_elixird()

    def theirs_go_on(self, model, optimizer, tokens):
        model.eval()  # without dropout
        losses = []
        for batch in tokens:
            optimizer.zero_grad()
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_states_of_torchs_adamw_go_on(self):
        model, folder = self.hugging_face_folder()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.theirs_go_on(model, optimizer, self.tokens(model, steps=10))
        model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), self.path('torch.pt'))
        imported = self.path('step-000000010')
        self.convert('import', '--torch', self.path('torch.pt'), '--model', folder, '--output', imported)
        with open(os.path.join(imported, 'elixir.json'), encoding='utf-8') as file:
            self.assertEqual(json.load(file)['manifest']['step'], 10)
        tokens = self.tokens(model, steps=20)
        saved = self.path('saved')
        ours, _ = self.our_steps(imported, 20, saved)
        without, _ = self.our_steps(folder, 20)  # the same weights, no states
        theirs = self.theirs_go_on(model, optimizer, tokens)
        for step, (our, their) in enumerate(zip(ours, theirs)):
            self.assertLess(abs(our - their), 1e-6 * their, f'step {step}')
        self.assertGreater(abs(without[-1] - theirs[-1]), 1e-6 * theirs[-1])
        stored = tensors_of(saved)
        for name, parameter in model.named_parameters():
            distance = (stored[name] - parameter.detach()).norm() / parameter.detach().norm()
            self.assertLess(distance.item(), 1e-5, name)
        self.stop_idle_elixird()

    def test_each_form_of_torchs_states_comes_in(self):
        model, folder = self.hugging_face_folder()
        decayed = [(name, parameter) for name, parameter in model.named_parameters() if parameter.dim() > 1]
        others = [(name, parameter) for name, parameter in model.named_parameters() if parameter.dim() == 1]
        groups = [{'params': decayed}, {'params': others, 'weight_decay': 0.0, 'lr': 2e-3}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
        self.theirs_go_on(model, optimizer, self.tokens(model, steps=2))
        model.save_pretrained(folder)
        forms = {'numbered': optimizer.state_dict(), 'named': get_optimizer_state_dict(model, optimizer),
                 'flat': get_optimizer_state_dict(model, optimizer, options=FLAT)}
        for form, states in forms.items():
            with self.subTest(form=form):
                torch.save(states, self.path('torch.pt'))
                imported = self.path(form)
                self.convert('import', '--torch', self.path('torch.pt'), '--model', folder, '--output', imported)
                stored = tensors_of(os.path.join(imported, 'optimizer'))
                for name, parameter in model.named_parameters():
                    for field, value in optimizer.state[parameter].items():
                        self.assertEqual(bits(value), bits(stored[f'state.{name}.{field}']), f'{name}: {field}')
                with open(os.path.join(imported, 'elixir.json'), encoding='utf-8') as file:
                    manifest = json.load(file)['manifest']
                of = [manifest['groups'][manifest['group_of'].get(name, 0)] for name in
                      (decayed[0][0], others[0][0])]
                self.assertEqual([(group['lr'], group['weight_decay']) for group in of],
                                 [(1e-3, 0.1), (2e-3, 0.0)])
        # Two groups whose numbers nobody can tell are not guessed at.
        for group in forms['numbered']['param_groups']:
            del group['param_names']
        torch.save(forms['numbered'], self.path('torch.pt'))
        refused = self.run_program(program('elixirctl'), 'checkpoint', 'import', '--torch', self.path('torch.pt'),
                                   '--model', folder, '--output', self.path('refused'))
        self.assertEqual(refused.exit_code, 2, str(refused))
        self.assertIn('--names FILE', refused.errors)
        self.assertFalse(os.path.exists(self.path('refused')))
        # Other optimizers' states are not taken for Adam's.
        for kind in (torch.optim.RAdam, torch.optim.NAdam, torch.optim.SGD):
            with self.subTest(kind=kind.__name__):
                optimizer = kind(model.parameters(), lr=1e-3)
                self.theirs_go_on(model, optimizer, self.tokens(model))
                torch.save(optimizer.state_dict(), self.path('torch.pt'))
                refused = self.run_program(program('elixirctl'), 'checkpoint', 'import', '--torch',
                                           self.path('torch.pt'), '--model', folder, '--output', self.path('refused'))
                self.assertEqual(refused.exit_code, 4, str(refused))
                self.assertIn('its groups have', refused.errors)


if __name__ == '__main__':
    harness.main()
