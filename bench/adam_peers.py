#!/usr/bin/env python3
"""Elixir's CPU update against torch's fused AdamW doing the same work, in one run.

The work: one step of AdamW on BF16 gradients that leaves BF16 parameters. Elixir's kernel does it
in one pass; torch casts the gradients to FP32, runs the fused optimizer on FP32 masters and casts
them back. Run with the Python that has torch, after bench/adam was built:

    .venv/bin/python bench/adam_peers.py [--bench build/release/bench/adam] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch


class TorchStep:
    """gradient BF16 -> FP32, fused AdamW, master FP32 -> BF16, on `numel` parameters."""

    def __init__(self, numel):
        generator = torch.Generator().manual_seed(1)
        self.master = (torch.rand(numel, generator=generator) - 0.5) * 0.2
        self.master.grad = torch.empty_like(self.master)
        self.grad = ((torch.rand(numel, generator=generator) - 0.5) * 0.2).bfloat16()
        self.param = self.master.bfloat16()
        self.optimizer = torch.optim.AdamW([self.master], lr=1e-3, weight_decay=0.01, fused=True)
        self.numel = numel
        self.run()  # makes the states

    def run(self):
        with torch.no_grad():
            self.master.grad.copy_(self.grad)
            self.optimizer.step()
            self.param.copy_(self.master)

    def gparam_s(self, steps):
        rates = []
        for _ in range(steps):
            start = time.perf_counter()
            self.run()
            rates.append(1e-9 * self.numel / (time.perf_counter() - start))
        return rates


def elixir_gparam_s(bench, numel, rounds, threads):
    """Medians of one run of bench/adam: (rate on all threads, its fraction of bandwidth)."""
    command = [bench, "--json", "--dtype", "bf16", "--isa", best_isa(), "--numel", str(numel),
               "--rounds", str(rounds), "--threads", str(threads)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    result = [r for r in report["results"] if r["threads"] == threads][-1]
    return result["gparam_s"], result["fraction"]


def best_isa():
    flags = Path("/proc/cpuinfo").read_text()
    return "avx512" if " avx512f " in flags else "avx2" if " avx2 " in flags else "scalar"


def main():
    default_bench = Path(__file__).resolve().parent.parent / "build/release/bench/adam"
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bench", default=str(default_bench), help="the built bench/adam")
    parser.add_argument("--numel", type=int, default=32 << 20)
    parser.add_argument("--rounds", type=int, default=5, help="both in turn this many times")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not os.access(arguments.bench, os.X_OK):
        sys.exit(f"{arguments.bench} is not a program; build it with scripts/build.sh or name it "
                 "with --bench")

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    step = TorchStep(arguments.numel)
    ours, theirs, fractions = [], [], []
    for _ in range(arguments.rounds):
        rate, fraction = elixir_gparam_s(arguments.bench, arguments.numel, 7, threads)
        ours.append(rate)
        fractions.append(fraction)
        theirs.append(statistics.median(step.gparam_s(7)))
    report = {
        "threads": threads,
        "elixir_gparam_s": statistics.median(ours),
        "elixir_fraction": statistics.median(fractions),
        "torch_fused_gparam_s": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs)),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"BF16 on {threads} threads, redo record included: {report['elixir_gparam_s']:.3f} Gparam/s "
          f"({report['elixir_fraction']:.3f} of in-place bandwidth)")
    print(f"torch {torch.__version__}, fused AdamW with its two casts: "
          f"{report['torch_fused_gparam_s']:.3f} Gparam/s")
    print(f"ratio {report['ratio']:.2f}")


if __name__ == "__main__":
    main()
