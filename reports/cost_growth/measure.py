"""How scoring time and its arithmetic grow with the completions' length and with the group size.

    python reports/cost_growth/measure.py

writes results.json, growth.png and the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import matplotlib as mpl
import torch

mpl.use("Agg")
import matplotlib.pyplot as plt

from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.benchmark.measure import FlopCount, matrix_rate
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import generator
from oar_lightning.credit.scorers import OarG, OarP, OarPApproximate
from oar_lightning.policy.language_model import token_logprobs
from oar_lightning.rollout import Generation
from oar_lightning.tasks.benchmark import machine
from oar_lightning.types import Rollouts

HERE = Path(__file__).parent
LENGTHS, GROUPS = (64, 128, 256, 512, 1024), (2, 4, 8, 16, 32)
GROUP, LENGTH = 4, 128  # of the sweep over the other
ROUNDS = 3
SLOW = 20.0  # seconds from which on a point is run once, timed and counted together
METHODS: dict[str, Callable[[Any, Rollouts], Any]] = {
    "forward pass": torch.no_grad()(lambda m, r: token_logprobs(m, r.token_ids, r.attention_mask, r.response_mask)),
    "OAR-G": OarG(),
    "OAR-P approximate": OarPApproximate(),
    "OAR-P": OarP(),
}
COLORS = dict(zip(METHODS, ("#7b8794", "#d9822b", "#4a67c8", "#1b2a6b"), strict=True))
Point = dict[str, float]


def random_texts(length: int, group: int) -> tuple[RandomWorkload, Rollouts]:
    """One prompt of 64 random tokens and a group of random completions. Nothing is sampled, so no states are left and every
    method runs the clean texts itself."""
    shape = RandomShape(
        hidden_size=128,
        intermediate_size=512,
        layers=4,
        heads=4,
        kv_heads=2,
        vocab_size=4096,
        prompt=64,
        completion=length,
        prompts=1,
        group_size=group,
    )
    work = RandomWorkload(shape, torch.device("cpu"))
    ids = torch.randint(1, shape.vocab_size, (group, shape.prompt + length), generator=generator("growth"))
    ids[:, : shape.prompt] = ids[0, : shape.prompt]
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    response = (torch.arange(ids.shape[1]) >= shape.prompt).expand_as(ids)
    return work, work.judge(Generation(ids, everywhere, response, everywhere[:, 0]), 0)


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """Slope of a least-squares line through the logarithms."""
    x, y = ([math.log(v) for v in vs] for vs in (sizes, values))
    return statistics.linear_regression(x, y).slope


def sweep(name: str, sizes: tuple[int, ...], texts: Callable[[int], tuple[RandomWorkload, Rollouts]]) -> dict[str, list[Point]]:
    """Median CPU seconds over rounds through all points, so that a busy moment hits each once; work: the round before."""
    made = {size: texts(size) for size in sizes}
    found: dict[str, list[Point]] = {method: [{"flop": 0.0} for _ in sizes] for method in METHODS}
    taken: dict[tuple[str, int], list[float]] = {}
    for number, (i, size), (method, run) in itertools.product(range(ROUNDS + 1), enumerate(sizes), METHODS.items()):
        if number and (method, size) in taken and taken[method, size][0] > SLOW:
            continue
        counter = contextlib.nullcontext() if number else FlopCount()
        work, rollouts = made[size]
        started = time.process_time()
        with counter:
            run(work.policy.model, rollouts)
        seconds = time.process_time() - started
        if isinstance(counter, FlopCount):
            found[method][i]["flop"] = counter.total
        if number or seconds > SLOW:
            taken.setdefault((method, size), []).append(seconds)
        sys.stderr.write(f"round {number}, {name} {size}, {method}: {seconds:.3f} s\n")
    for method, points in found.items():
        for size, point in zip(sizes, points, strict=True):
            point |= {"seconds": statistics.median(taken[method, size]), "runs": len(taken[method, size])}
    return found


def tables(name: str, sizes: tuple[int, ...], found: dict[str, list[Point]]) -> str:
    """Seconds of each size with their exponents, and the same of the arithmetic."""
    half = len(sizes) // 2
    pieces = []
    for key, unit, scale in (("seconds", "s", 1.0), ("flop", "GFLOP", 1e9)):
        rows = [[f"{name} ({unit})", *map(str, sizes), "exponent", f"exponent from {sizes[half]}"]]
        for method, points in found.items():
            values = [p[key] / scale for p in points]
            cells = [f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in values]
            fits = exponent(sizes, values), exponent(sizes[half:], values[half:])
            rows.append([method, *cells, *(f"{f:.2f}" for f in fits)])
        pieces.append(markdown(rows))
    rows = [[f"{name} (GFLOP/s)", *map(str, sizes)]]
    rows += [[m, *(f"{p['flop'] / p['seconds'] / 1e9:.0f}" for p in points)] for m, points in found.items()]
    return "\n\n".join([*pieces, markdown(rows)])


def plot(results: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for axis, name, sizes in zip(axes, ("length", "group"), (LENGTHS, GROUPS), strict=True):
        for method, points in results[name].items():
            seconds = [p["seconds"] for p in points]
            slope = exponent(sizes[len(sizes) // 2 :], seconds[len(sizes) // 2 :])
            axis.plot(sizes, seconds, "o-", color=COLORS[method], label=f"{method}: exponent {slope:.2f}")
            axis.plot(sizes, [p["flop"] / results["rate"] for p in points], ":", color=COLORS[method])
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(title=f"fitted from {sizes[len(sizes) // 2]} on", loc="upper left")
    axes[0].set(
        xlabel=f"tokens of a completion (group of {GROUP})", ylabel="CPU seconds of scoring (dotted: arithmetic at matrix rate)"
    )
    axes[1].set(xlabel=f"completions of a group ({LENGTH} tokens each)")
    axes[1].yaxis.set_tick_params(labelleft=True)
    figure.savefig(HERE / "growth.png", dpi=130)


def write(results: dict[str, Any]) -> None:
    plot(results)
    parts = {
        name: tables(words, sizes, results[name])
        for name, words, sizes in (("length", "tokens", LENGTHS), ("group", "group", GROUPS))
    }
    rate = f"{results['machine']}. Matrix products reach {results['rate'] / 1e9:.0f} GFLOP/s."
    fill(HERE / "README.md", "\n\n".join([rate, *parts.values()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sweeps", nargs="*", default=["length", "group"], choices=["length", "group"], help="what to measure anew"
    )
    sweeps = parser.parse_args().sweeps
    stored = HERE / "results.json"
    results: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    torch.set_num_threads(1)  # CPU seconds of one thread depend little on what else a shared machine does
    if sweeps:
        work, _ = random_texts(LENGTH, GROUP)
        results |= {"machine": machine(work), "rate": matrix_rate(torch.device("cpu"), torch.float32)}
    if "length" in sweeps:
        results["length"] = sweep("length", LENGTHS, lambda length: random_texts(length, GROUP))
    if "group" in sweeps:
        results["group"] = sweep("group", GROUPS, lambda group: random_texts(LENGTH, group))
    stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if {"length", "group"} <= results.keys():
        write(results)


if __name__ == "__main__":
    main()
