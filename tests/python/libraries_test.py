"""TRL, PEFT, accelerate and loops of one's own: the losses of torch.optim.AdamW."""

import os
import unittest

import python_case
from python_case import PythonCase, examples, farthest, masters_hash, small_model

python_case.need('transformers', 'accelerate', 'peft')

import torch  # noqa: E402
import elixir  # noqa: E402


def batches(count, seed=1):
    rows = examples(4 * count, seed=seed)
    return [torch.stack([row['input_ids'] for row in rows[4 * i:4 * i + 4]]) for i in range(count)]


def two_ways(make_model, lr=1e-3):
    """(name, model, optimizer) for torch and for Elixir."""
    model = make_model()
    yield 'torch', model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    model = make_model()
    yield 'elixir', model, elixir.AdamW(model, lr=lr)


class Libraries(PythonCase):
    def test_a_loop_with_a_scheduler_and_accumulation(self):
        results = {}
        for name, model, optimizer in two_ways(lambda: small_model('qwen3')):
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
            losses, norms = [], []
            for number, tokens in enumerate(batches(20)):
                loss = model(input_ids=tokens, labels=tokens).loss / 2
                loss.backward()
                losses.append(loss.item())
                if number % 2:
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    norms.append(float(norm))
            results[name] = losses, norms
        self.assertLess(farthest(results['elixir'][0], results['torch'][0]), 1e-6)
        self.assertLess(farthest(results['elixir'][1], results['torch'][1]), 1e-5)

    def test_accelerate(self):
        from accelerate import Accelerator
        results = {}
        for name, model, optimizer in two_ways(lambda: small_model('llama')):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            data = torch.utils.data.DataLoader(torch.cat(batches(9)), batch_size=4)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
            losses = []
            for _ in range(2):
                for tokens in data:
                    with accelerator.accumulate(model):
                        loss = model(input_ids=tokens, labels=tokens).loss
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
                        losses.append(loss.item())
            results[name] = losses
            if name == 'elixir':
                self.saves_and_loads(accelerator, model, optimizer)
        self.assertLess(farthest(results['elixir'], results['torch']), 1e-6)

    def saves_and_loads(self, accelerator, model, optimizer):
        folder = os.path.join(self.folder, 'state')
        accelerator.save_state(folder)
        self.assertLess(os.path.getsize(os.path.join(folder, 'optimizer.bin')), 10_000)
        before = masters_hash(optimizer.optimizer)
        tokens = batches(1, seed=5)[0]

        def one_more():
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return masters_hash(optimizer.optimizer)
        after = one_more()
        accelerator.load_state(folder)
        self.assertEqual(masters_hash(optimizer.optimizer), before)
        self.assertEqual(one_more(), after)

    def test_peft(self):
        import peft
        base = os.path.join(self.folder, 'base')
        small_model('llama').save_pretrained(base)

        def adapted():
            torch.manual_seed(5)
            return peft.get_peft_model(small_model('llama'), peft.LoraConfig(
                r=8, lora_alpha=16, target_modules=['q_proj', 'v_proj'], lora_dropout=0.0))
        results, tokens = {}, batches(1, seed=3)[0]
        for name, model, optimizer in two_ways(adapted, lr=1e-2):
            losses = []
            for each in batches(10):
                loss = model(input_ids=each, labels=each).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            results[name] = losses
            with torch.no_grad():
                logits = model(input_ids=tokens).logits
            adapter = os.path.join(self.folder, name)
            model.save_pretrained(adapter)
            read = peft.PeftModel.from_pretrained(type(model.base_model.model).from_pretrained(base), adapter)
            self.assertTrue(torch.equal(read(input_ids=tokens).logits, logits), name)
            if name == 'elixir':
                summary = optimizer._native.plan_summary()
                self.assertEqual(summary['frozen_parameters'],
                                 sum(p.numel() for p in model.parameters() if not p.requires_grad))
                optimizer.release()
                merged = model.merge_and_unload()
                self.assertEqual(type(merged).__name__, 'LlamaForCausalLM')
                self.assertTrue(torch.allclose(merged(input_ids=tokens).logits, logits, atol=1e-4))
        self.assertLess(farthest(results['elixir'], results['torch']), 1e-6)

    def test_sft(self):
        try:
            from datasets import Dataset
            from trl import SFTConfig, SFTTrainer
        except ImportError as missing:
            self.skipTest(str(missing))
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        words = Tokenizer(models.WordLevel({'<unk>': 0, '<pad>': 1, '<eos>': 2, **{
            word: 3 + i for i, word in enumerate('a b c d e f g h i j k l m n o p'.split())}}, unk_token='<unk>'))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token='<unk>', pad_token='<pad>',
                                            eos_token='<eos>')
        data = Dataset.from_dict({'text': [' '.join('abcdefghijklmnop'[(i * k) % 16] for i in range(20))
                                           for k in range(1, 41)]})
        results = {}
        for name, model, optimizer in two_ways(lambda: small_model('llama')):
            settings = SFTConfig(
                output_dir=os.path.join(self.folder, name), max_steps=10, logging_steps=2, save_strategy='no',
                per_device_train_batch_size=4, report_to=[], use_cpu=True, bf16=False, learning_rate=1e-3,
                max_length=32, disable_tqdm=True, activation_checkpointing=False, gradient_checkpointing=False)
            trainer = SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer,
                                 optimizers=(optimizer, None))
            trainer.train()
            results[name] = [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry]
        self.assertLess(farthest(results['elixir'], results['torch']), 1e-6)

    def test_a_model_from_a_folder(self):
        from transformers import AutoModelForCausalLM
        for kind in ('llama', 'qwen3'):
            folder = os.path.join(self.folder, kind)
            whole = small_model(kind)
            whole.save_pretrained(folder)
            model = elixir.hf.from_pretrained(AutoModelForCausalLM, folder)
            self.assertTrue(model.model.embed_tokens.weight.is_meta)
            optimizer = elixir.AdamW(model, lr=1e-3)
            optimizer.start()
            for name, values in whole.state_dict().items():
                self.assertTrue(torch.equal(model.state_dict()[name], values), name)
        folder = os.path.join(self.folder, 'base')
        whole.model.save_pretrained(folder)  # without the head: other names
        with self.assertLogs('elixir', 'WARNING') as said:
            model = elixir.hf.from_pretrained(AutoModelForCausalLM, folder)
        self.assertIn('under the model\'s name', said.output[0])
        self.assertFalse(model.model.embed_tokens.weight.is_meta)

    def test_resized_embeddings(self):
        model = small_model('llama')
        optimizer = elixir.AdamW(model, lr=1e-3)
        optimizer.start()
        with self.assertRaises(RuntimeError):
            model.resize_token_embeddings(600)
            tokens = batches(1)[0]
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()


if __name__ == '__main__':
    unittest.main()
