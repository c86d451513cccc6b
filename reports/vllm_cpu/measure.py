"""Tokens per second of the package's decoding loop and of vLLM's CPU backend, on the same models and batches, in turns.

    .venv-vllm/bin/python reports/vllm_cpu/measure.py [--rounds 5] [--rows 1 16 256] [--threads 2]

in the environment of `make vllm`; writes README.md beside this file (its text outside the markers is kept).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, for each of the four that one process makes

import torch

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import derive_seed
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.data.stream import sample_texts
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.rollout import CachedEngine, SamplingConfig, VllmConfig, VllmEngine

README = Path(__file__).with_name("README.md")
SAMPLES = 8
SAMPLING = SamplingConfig(max_new_tokens=64, keep_states=False)


def policies(texts: list[str]) -> dict[str, Policy]:
    larger = FreshPolicy(hidden_size=512, num_layers=8, num_heads=8, num_kv_heads=4, intermediate_size=1408)
    return {"built-in `graph`": PretrainedPolicy("graph").load(), "random, wider and deeper": larger.build(texts)}


def engines(policy: Policy) -> dict[str, Any]:
    def vllm(enforce_eager: bool) -> VllmEngine:
        return VllmEngine(policy.tokenizer, VllmConfig(gpu_memory_utilization=0.2, enforce_eager=enforce_eager))

    return {
        "decoding loop (`engine=auto`)": CachedEngine(policy.tokenizer),
        "vLLM, `engine.enforce_eager=true`": vllm(True),
        "vLLM, compiled": vllm(False),
    }


def tokens_per_second(engine: Any, policy: Policy, prompts: list[str], samples: int, number: int) -> float:
    seeds = [derive_seed(number, place) for place in range(len(prompts))]
    start = time.perf_counter()
    generation = engine(policy.model, prompts, samples, SAMPLING, seeds)
    return int(generation.response_mask.sum()) / (time.perf_counter() - start)


def measured(policy: Policy, prompts: list[str], sizes: list[int], rounds: int) -> dict[tuple[str, int], list[float]]:
    """Engine and rows -> tokens per second of each round. A first round, which starts and compiles, is not counted."""
    found: dict[tuple[str, int], list[float]] = {}
    built = engines(policy)
    for number in range(rounds + 1):
        for rows in sizes:
            samples = min(rows, SAMPLES)
            for name, engine in built.items():
                rate = tokens_per_second(engine, policy, prompts[: rows // samples], samples, number)
                if number:
                    found.setdefault((name, rows), []).append(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    source, prompt = GraphProblems(GraphTask(), seed=0), PlainPrompt()
    prompts = [prompt.render(source[place]) for place in range(max(arguments.rows))]
    table = []
    for label, policy in policies(sample_texts(source, prompt.render, 200)).items():
        size = f"{sum(p.numel() for p in policy.model.parameters()) / 1e6:.1f} M"
        found = measured(policy, prompts, arguments.rows, arguments.rounds)
        first = next(name for name, _ in found)
        for (name, rows), rates in sorted(found.items(), key=lambda item: item[0][1]):
            ratios = [rate / own for rate, own in zip(rates, found[first, rows], strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            table.append([label, size, str(rows), name, f"{median(rates):.0f}", spread])
    header = ["policy", "parameters", "rows", "engine", "tokens / s (median)", "of the loop's, median (range)"]
    load = f"Load of the machine at the end: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores, {arguments.threads} threads."
    fill(README, f"{load}\n\n{markdown([header, *table])}")
    sys.stdout.write(README.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
