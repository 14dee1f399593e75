#!/usr/bin/env python3
"""Tokens a second of train_gpt2 through elixird against plain_gpt2 (LibTorch's own loop with
torch::optim::AdamW), on the same processors and with the same sequences a step.

Runs plain_gpt2 and each plan in turn, round after round, and compares medians of the steps' rates:
what else the machine does falls on all of them alike. --check: exit with 1 when a plan is below
0.95 of plain_gpt2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GOAL = 0.95
WARM_UP = 5  # steps


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path,
                        default=Path(__file__).resolve().parent.parent / "build/release",
                        help="the build's folder")
    parser.add_argument("--model", default="nano", help="as train_gpt2's")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, of all ranks")
    parser.add_argument("--steps", type=int, default=30, help="steps a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each plan")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 1.0],
                        help="blocks as shares of the chunks")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the goal is missed")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser.parse_args()


def rates(command, jsonl, environment):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                   env=environment)
    steps = [json.loads(line) for line in jsonl.read_text().splitlines()]
    return [step["tokens_s"] for step in steps[WARM_UP:]]


def train(arguments, ranks, blocks, folder, environment):
    jsonl = folder / "train.jsonl"
    command = [str(arguments.build / "bin/train_gpt2"), "--model", arguments.model,
               "--batch", str(arguments.batch // ranks), "--steps", str(arguments.steps),
               "--rcache-blocks", str(blocks), "--device", "cpu", "--log-every", "0",
               "--jsonl", str(jsonl)]
    run = [str(arguments.build / "bin/elixir-run"), "--ranks", str(ranks), "--"]
    return rates(run + command, jsonl, environment)


def plain(arguments, folder, environment):
    jsonl = folder / "plain.jsonl"
    threads = len(os.sched_getaffinity(0))
    command = [str(arguments.build / "bench/plain_gpt2"), "--model", arguments.model,
               "--batch", str(arguments.batch), "--steps", str(arguments.steps),
               "--threads", str(threads), "--log-every", "0", "--jsonl", str(jsonl)]
    return rates(command, jsonl, environment)


def chunks_of(arguments, folder, environment):
    """The number of chunks: the gathers of a step for which no block is lacking."""
    jsonl = folder / "chunks.jsonl"
    command = [str(arguments.build / "bin/elixir-run"), "--ranks", "1", "--",
               str(arguments.build / "bin/train_gpt2"), "--model", arguments.model, "--batch", "1",
               "--steps", "2", "--rcache-blocks", "100000", "--device", "cpu", "--log-every", "0",
               "--jsonl", str(jsonl)]
    rates(command, jsonl, environment)
    return json.loads(jsonl.read_text().splitlines()[-1])["gathers"]


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="elixir-tokens-") as name:
        folder = Path(name)
        environment = dict(os.environ, ELIXIR_RUNTIME_DIR=str(folder / "runtime"))
        chunks = chunks_of(arguments, folder, environment)
        plans = [(ranks, max(2, -(-int(chunks * share * 1000) // 1000)))
                 for ranks in arguments.ranks for share in arguments.shares]
        measured = {plan: [] for plan in plans}
        peer = []
        for _ in range(arguments.rounds):
            peer += plain(arguments, folder, environment)
            for plan in plans:
                measured[plan] += train(arguments, *plan, folder, environment)
    plain_rate = statistics.median(peer)
    results = [{"ranks": ranks, "blocks": blocks, "chunks": chunks,
                "tokens_s": statistics.median(measured[ranks, blocks]),
                "ratio": statistics.median(measured[ranks, blocks]) / plain_rate}
               for ranks, blocks in plans]
    if arguments.json:
        print(json.dumps({"plain_tokens_s": plain_rate, "results": results}))
    else:
        print(f"plain_gpt2                      {plain_rate:8.0f} tokens/s")
        for row in results:
            print(f"{row['ranks']} rank(s), {row['blocks']:3} of {row['chunks']} blocks  "
                  f"{row['tokens_s']:8.0f} tokens/s  {row['ratio']:.3f} of plain (goal {GOAL})")
    missed = any(row["ratio"] < GOAL for row in results)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
