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


def resident_mib(field):
    with open('/proc/self/status', encoding='ascii') as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


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
        self.assertLess(farthest(results['elixir'], results['torch']), 1e-6)

    def test_accelerate_saves_and_loads(self):
        from accelerate import Accelerator
        for dtype in (torch.float32, torch.bfloat16):
            accelerator = Accelerator(cpu=True)
            model = small_model('llama', dtype)
            model, optimizer = accelerator.prepare(model, elixir.AdamW(model, lr=1e-3))
            self.saves_and_loads(accelerator, model, optimizer, os.path.join(self.folder, str(dtype)))

    def saves_and_loads(self, accelerator, model, optimizer, folder):
        for tokens in batches(3):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        accelerator.save_state(folder)
        self.assertLess(os.path.getsize(os.path.join(folder, 'optimizer.bin')), 10_000)
        self.assertEqual(sorted(os.listdir(os.path.join(folder, 'elixir'))), ['elixir.json', 'optimizer'])
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
        os.rename(os.path.join(folder, 'elixir'), os.path.join(folder, 'away'))
        with self.refused('has no folder elixir/'):
            accelerator.load_state(folder)
        self.assertEqual(masters_hash(optimizer.optimizer), after)  # nothing was loaded

    def test_accelerate_piece_by_piece(self):
        """prepare_model() and prepare_optimizer() by themselves follow mixed_precision and save the states, too."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, mixed_precision='bf16')
        model = accelerator.prepare_model(small_model('llama'))
        optimizer = accelerator.prepare_optimizer(elixir.AdamW(model, lr=1e-3))
        tokens = batches(1)[0]
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        self.assertEqual(optimizer.optimizer.dtype, torch.bfloat16)
        accelerator.save_state(os.path.join(self.folder, 'state'))
        self.assertTrue(os.path.isdir(os.path.join(self.folder, 'state', 'elixir')))

    def test_settings_of_accelerate_that_cannot_be_followed(self):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        for settings, text in (({'mixed_precision': 'fp16'}, 'use "bf16"'), ({'dynamo_backend': 'eager'}, 'compile')):
            for prepare in ('prepare', 'prepare_optimizer'):
                AcceleratorState._reset_state(True)
                accelerator = Accelerator(cpu=True, **settings)
                with self.subTest(settings), self.refused(text):
                    getattr(accelerator, prepare)(elixir.AdamW(small_model('llama')))
        AcceleratorState._reset_state(True)

    def test_torch_makes_no_step_of_its_own(self):
        """torch.distributed.checkpoint would: it makes states that it does not find by a step with zeros."""
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model = torch.nn.Linear(4, 4)
        optimizer = elixir.AdamW(model)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        with self.refused('torch.distributed.checkpoint', 'elixir.save'):
            get_state_dict(model, optimizer)
        self.assertEqual(optimizer.outcome()['step'], 1)

    def test_torch_does_not_take_an_elixir_optimizer_for_one_without_moments(self):
        model = torch.nn.Linear(4, 4)
        with self.assertRaisesRegex(ValueError, "doesn't match the size"):
            torch.optim.AdamW(torch.nn.Linear(4, 4).parameters()).load_state_dict(elixir.AdamW(model).state_dict())

    def test_one_process_does_not_use_several_gpus(self):
        model = torch.nn.Linear(4, 4)
        optimizer = elixir.AdamW(model)
        with self.refused('DataParallel', 'torchrun', 'CUDA_VISIBLE_DEVICES'):
            torch.nn.DataParallel(model)
        self.assertFalse(optimizer.started)

    def test_types_in_which_nothing_is_computed(self):
        for dtype, text in ((torch.float16, 'use dtype="bf16"'), (torch.float64, 'give dtype="fp32"')):
            model = torch.nn.Linear(4, 4).to(dtype)
            with self.refused(text):
                elixir.AdamW(model).start()
            elixir.AdamW(model, dtype='fp32').start()
            self.assertEqual(model.weight.dtype, torch.float32)

    def test_a_base_that_is_cast_is_named(self):
        import peft
        for dtype in (None, 'bf16'):
            model = peft.get_peft_model(small_model('llama', torch.bfloat16), peft.LoraConfig(r=4, target_modules=['q_proj']))
            optimizer = elixir.AdamW(model, dtype=dtype)
            if dtype is None:
                with self.assertLogs('elixir', 'WARNING') as said:
                    optimizer.start()
                self.assertIn('cast from torch.bfloat16 to torch.float32', said.output[0])
            else:
                with self.assertNoLogs('elixir', 'WARNING'):
                    optimizer.start()
            frozen = next(p for p in model.parameters() if not p.requires_grad)
            self.assertEqual(frozen.dtype, torch.bfloat16 if dtype else torch.float32)

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

    def test_an_adapter_resumes_beside_its_base(self):
        import peft

        def adapted():
            torch.manual_seed(5)
            return peft.get_peft_model(small_model('llama'), peft.LoraConfig(
                r=8, lora_alpha=16, target_modules=['q_proj', 'v_proj'], lora_dropout=0.0))

        hashes = []
        for resume in (None, os.path.join(self.folder, 'checkpoint-10')):
            model = adapted()
            optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, dtype='bf16')
            python_case.trained(model, optimizer, self.folder, resume=resume, save_strategy='steps', save_steps=10)
            hashes.append(masters_hash(optimizer))
        self.assertEqual(*hashes)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.assertLess(python_case.bytes_in(os.path.join(self.folder, 'checkpoint-10', 'elixir')),
                        12 * trained + 30_000)
        model = adapted()
        with torch.no_grad():
            model.base_model.model.lm_head.weight[3] += 1
        optimizer = elixir.AdamW(model, lr=1e-3, weight_decay=0.1, dtype='bf16')
        with self.refused('saved without what is not trained', 'the same base'):
            python_case.trained(model, optimizer, self.folder, resume=resume)

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
        model.resize_token_embeddings(600)
        tokens = batches(1)[0]
        with self.assertRaisesRegex(  # autograd makes a RuntimeError of elixir's
                RuntimeError, "'model.embed_tokens.weight' was given other data.*resize_token_embeddings.*resize the module before"):
            model(input_ids=tokens, labels=tokens).loss.backward()

    def test_save_pretrained_takes_one_copy_of_the_model(self):
        model = small_model('llama', hidden_size=512, intermediate_size=2048, num_hidden_layers=8, vocab_size=8000)
        optimizer = elixir.AdamW(model, lr=1e-3)
        optimizer.start()
        model_mib = sum(parameter.numel() for parameter in model.parameters()) * 4 / 2**20
        for save, limit_mib in ((lambda folder: elixir.save_model(optimizer, folder), 64),
                                (model.save_pretrained, model_mib + 64)):
            before, mapped = resident_mib('VmRSS'), resident_mib('RssShmem') + resident_mib('RssFile')
            with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
                file.write('5')  # VmHWM begins anew
            for number in range(3):  # what a save kept would add up
                save(os.path.join(self.folder, f'{limit_mib}-{number}'))
            # Not counted: elixird's memory, which this process has looked at, and code that it has loaded.
            mapped = resident_mib('RssShmem') + resident_mib('RssFile') - mapped
            self.assertLess(resident_mib('VmHWM') - before - mapped, limit_mib)


if __name__ == '__main__':
    unittest.main()
