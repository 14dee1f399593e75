"""What the tests of python/elixir share: an elixird of their own, small models, and trainings beside torch's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
BUILD = os.environ.get('ELIXIR_BUILD_DIR', os.path.join(HERE, '..', '..', 'build', 'release'))
SKIPPED = 77
EVERY_CASE = os.environ.get('ELIXIR_EVERY_CASE') == '1'
TIMING = os.environ.get('ELIXIR_TIMING') == '1'  # the test's entry with the label timing
LOOK_S = 0.02
ONE_RANK = {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1', 'LOCAL_WORLD_SIZE': '1', 'ELIXIR_JOB': 'one'}
os.environ['OMP_NUM_THREADS'] = '1'
if 'RANK' not in os.environ:  # a test, not a rank that it has started
    for name in [name for name in os.environ if name.startswith(('ELIXIR_RUNTIME', 'ELIXIR_JOB', 'TORCHELASTIC_'))]:
        del os.environ[name]
    CACHE = tempfile.TemporaryDirectory(prefix='elixir-cache-')  # what trainings keep of this machine
    os.environ['XDG_CACHE_HOME'] = CACHE.name
    os.environ['ELIXIR_PROBE_SECONDS'] = '600'  # tests beside this one take its time
sys.path.insert(0, os.path.join(BUILD, 'python'))

import torch  # noqa: E402

torch.set_num_threads(1)


class Daemon:
    """An elixird in a runtime folder of its own, which programs of this process's environment find."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix='elixir-python-')
        os.environ['ELIXIR_RUNTIME_DIR'] = self.folder
        self.log = open(os.path.join(self.folder, 'log'), 'wb')
        self.process = subprocess.Popen(
            [os.path.join(BUILD, 'bin', 'elixird'), '--runtime-dir', self.folder, '--no-bandwidth-probe'],
            stdout=self.log, stderr=self.log)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


class PythonCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.end()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='elixir-python-test-')
        self.addCleanup(shutil.rmtree, self.folder)

    def refused(self, *texts):
        """A `with` block that must raise elixir.Error with these texts."""
        import elixir
        return Refused(self, elixir.Error, texts)

    def run_ranks(self, ranks, script, *args, limit_s=240, **environment):
        """The lines that rank 0 prints, of a script of this folder under torchrun."""
        finished = subprocess.run(
            [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks),
             os.path.join(HERE, script), *map(str, args)],
            capture_output=True, text=True, check=False, timeout=limit_s,
            env={**os.environ, **{name: str(value) for name, value in environment.items()}})
        self.assertEqual(finished.returncode, 0, finished.stdout[-3000:] + finished.stderr[-6000:])
        return finished.stdout.splitlines()

    def warm_lines(self, script, *args):
        """What warm.each() of a script of this folder prints, one dictionary for each case."""
        finished = subprocess.run([sys.executable, '-B', os.path.join(HERE, script), self.folder, *map(str, args)],
                                  capture_output=True, text=True, check=False, env={**os.environ, **ONE_RANK})
        self.assertEqual(finished.returncode, 0, finished.stderr)
        return [json.loads(line) for line in finished.stdout.splitlines()]

    def await_no_jobs(self):
        """elixird has freed all sessions."""
        while running_jobs():
            time.sleep(LOOK_S)  # cannot fail by chance: it polls


class Refused:
    def __init__(self, test, kind, texts):
        self.test, self.kind, self.texts = test, kind, texts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        self.test.assertIsNotNone(error, f'nothing was raised; expected {self.texts}')
        if not isinstance(error, self.kind):
            return False
        for text in self.texts:
            self.test.assertIn(text, str(error))
        return True


def running_jobs():
    """What elixird says of each job."""
    import elixir
    return [job for daemon in elixir._status.ask() for job in daemon['jobs']]


def need(*modules):
    """Ends the program as skipped where one of these cannot be imported."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as missing:
            print(f'skipped: {missing}; scripts/foreign_setup.sh installs it')
            sys.exit(SKIPPED)


def net(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(),
                               torch.nn.Linear(32, 4))


def net_loss(model, number, passes=1):
    inputs = torch.sin(torch.arange(6 * 16, dtype=torch.float32).view(6, 16) * 0.3 + number)
    dtype = next(model.parameters()).dtype
    return (model(inputs.to(dtype)).float() - inputs[:, :4]).square().mean() / passes


def small_model(kind, dtype=torch.float32, **changes):
    """A Hugging Face model of two layers whose values depend on nothing else."""
    import transformers
    sizes = {'vocab_size': 512, 'hidden_size': 64, 'intermediate_size': 128, 'num_hidden_layers': 2,
             'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 128, **changes}
    torch.manual_seed(0)
    if kind == 'llama':
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    elif kind == 'gpt2':
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=128, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))
    elif kind == 'qwen3':
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=16, tie_word_embeddings=True))
    elif kind == 'gemma3':
        model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, head_dim=16))
    else:
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, num_local_experts=4))
    return model.to(dtype)


# What Trainer is asked to train, and how.
KINDS = ('llama', 'gpt2', 'qwen3', 'gemma3', 'mixtral')
WAYS = {
    'plain': {}, 'checkpointing': {'activation_checkpointing': True},
    'accumulation with a rest': {'gradient_accumulation_steps': 2, 'max_steps': 17},
    'clipped harder': {'max_grad_norm': 0.05}, 'two workers': {'dataloader_num_workers': 2},
}


def examples(count, length=48, seed=1):
    """Rows of tokens that can be learned."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 512, (length,), generator=generator) % (i % 50 + 4) for i in range(count)]
    return [{'input_ids': row, 'labels': row} for row in rows]


def trained(model, optimizer, folder, data=None, resume=None, callbacks=(), **arguments):
    """(losses, norms) that an unmodified Trainer logs, every 5 of 20 steps."""
    import transformers
    transformers.logging.set_verbosity_error()
    settings = {'output_dir': folder, 'per_device_train_batch_size': 4, 'max_steps': 20, 'logging_steps': 5,
                'learning_rate': 1e-3, 'weight_decay': 0.1, 'max_grad_norm': 0.5, 'save_strategy': 'no', 'report_to': [],
                'use_cpu': True, 'disable_tqdm': True, 'lr_scheduler_type': 'cosine', 'seed': 1, **arguments}
    trainer = transformers.Trainer(
        model=model, args=transformers.TrainingArguments(**settings), train_dataset=data or examples(128),
        optimizers=(optimizer, None), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    logged = [entry for entry in trainer.state.log_history if 'loss' in entry]
    return [entry['loss'] for entry in logged], [float(entry['grad_norm']) for entry in logged], trainer


def farthest(ours, theirs):
    """The largest relative difference."""
    assert len(ours) == len(theirs) and ours, (ours, theirs)
    return max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs))


def bytes_in(folder):
    return sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)


def masters_hash(optimizer):
    return f'{optimizer._native.weights_xxh64():016x}'
