#!/usr/bin/env python3
"""Fine-tunes a Hugging Face folder of Llama 3.2 1B's shape, with random weights, as a user does: elixir-run,
elixir-train, the planner's choice. Writes RESULTS/NAME.json.

  fine_tune.py --name NAME --results RESULTS [--tiny] [-- MORE FLAGS OF ELIXIR-TRAIN]

Fails if elixir-train does, if its first loss is not that of transformers on the same tokens (both in BF16), if what
it exports does not open in transformers, or if some of what elixird shares with the trainer is not page-locked.
"""

import argparse
import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_VERBOSITY='error', HF_HUB_DISABLE_PROGRESS_BARS='1')

import measure_training  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

LLAMA3 = {'rope_type': 'llama3', 'factor': 32.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
          'original_max_position_embeddings': 8192, 'rope_theta': 500000.0}
WHOLE = {'vocab_size': 128256, 'hidden_size': 2048, 'intermediate_size': 8192, 'num_hidden_layers': 16,
         'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 64, 'max_position_embeddings': 131072}
TINY = {'vocab_size': 500, 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 2,
        'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 131072}
CLOSE = 0.01  # two ways to round to BF16, in losses of about ln(vocabulary)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


def write_folder(folder, sizes):
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, rope_parameters=LLAMA3,
                                      pad_token_id=None)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def loss_of(folder, tokens):
    """Of transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)
    row = torch.from_numpy(tokens.astype(numpy.int64)).to(DEVICE)
    with torch.no_grad():
        logits = model(row[None, :-1]).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits, row[1:]).item()
    del model, logits
    if DEVICE == 'cuda':
        torch.cuda.empty_cache()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--name', required=True)
    parser.add_argument('--results', required=True)
    parser.add_argument('--tiny', action='store_true')
    parser.add_argument('flags', nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    sizes, batch, seq, steps = (TINY, 2, 64, 4) if arguments.tiny else (WHOLE, 8, 1024, 12)
    work = os.environ.get('WORK', arguments.results)
    path = os.path.join(arguments.results, arguments.name)
    folder, export, data = (os.path.join(work, name) for name in ('model', 'exported', 'data.bin'))
    numel = write_folder(folder, sizes)
    # One sequence: every row of every batch is it.
    generator = numpy.random.default_rng(1)
    tokens = generator.integers(0, sizes['vocab_size'], seq + 1).astype(numpy.uint32)
    tokens.tofile(data)
    theirs = loss_of(folder, tokens)

    flags = [*(word for word in arguments.flags if word != '--'), '--init', folder, '--data', data, '--tokens-dtype',
             'uint32', '--steps', str(steps), '--batch', str(batch), '--seq', str(seq), '--clip-norm', '1', '--lr',
             '1e-4', '--warmup-steps', '0', '--log-every', '1', '--jsonl', f'{path}.jsonl', '--export', export]
    began = time.monotonic()
    watch = measure_training.Watch()
    try:
        code, refused, planned = measure_training.run(
            [measure_training.program('elixir-run'), '-n', '1', measure_training.program('elixir-train'), *flags])
    finally:
        memory = watch.end()
    report = {'kind': 'fine-tuning', 'command': ' '.join(['elixir-train', *flags]), 'exit_code': code,
              'parameters': numel, 'page_locked': not refused, **planned, **memory,
              'whole_s': round(time.monotonic() - began, 1), 'loss_of_transformers': theirs}
    lines = measure_training.read_steps(f'{path}.jsonl')
    report['losses'] = [line['loss'] for line in lines]
    report['figures'] = measure_training.figures(lines, flags, numel)
    wrong = refused[:1]
    if code == 0:
        if abs(report['losses'][0] - theirs) > CLOSE:
            wrong.append(f"the first loss is {report['losses'][0]}, and transformers' {theirs}")
        opened, told = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
        if any(told.values()) or opened.num_parameters() != numel:
            wrong.append(f'transformers opens the export with {told}')
        trained = loss_of(export, tokens)
        report['loss_of_the_export'] = trained
        if not trained < theirs:
            wrong.append(f'transformers finds the export no better: {trained}, before {theirs}')
    report['wrong'] = wrong
    with open(f'{path}.json', 'w', encoding='utf-8') as file:
        json.dump(report, file, indent=2)
    print(json.dumps({key: report[key] for key in ('whole_s', 'losses', 'loss_of_transformers', 'figures')}))
    for line in wrong:
        print(f'fine_tune: {line}')
    return code if code > 0 else 128 - code if code < 0 else int(bool(wrong))


if __name__ == '__main__':
    sys.exit(main())
