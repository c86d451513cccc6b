"""How scoring time and its arithmetic grow with the completions' length and with the group size.

    python reports/cost_growth/measure.py

writes results.json, growth.png and the tables of README.md beside this file. `--sweeps` and `--methods` measure some again.
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
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import matplotlib as mpl
import torch

mpl.use("Agg")
import matplotlib.pyplot as plt

from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.benchmark.work import FlopCount, matrix_rate
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import generator
from oar_lightning.credit.scorers import OarG, OarP, OarPApproximate, OarPSteps, TotalEffectFast
from oar_lightning.credit.segments import FixedLength
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.empty import no_memory, peak_bytes
from oar_lightning.planning.scoring import Batch, dry_run_inputs
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.reporting.method_style import STYLES
from oar_lightning.rollout import Generation
from oar_lightning.tasks.benchmark import machine
from oar_lightning.types import Rollouts

HERE = Path(__file__).parent
LENGTHS, GROUPS = (64, 128, 256, 512, 1024, 2048, 4096), (2, 4, 8, 16, 32)
FITTED_FROM = {"length": (64, 256, 1024), "group": (2, 8)}
GROUP, LENGTH, PROMPT = 4, 128, 64  # of the sweep over the other, and of all prompts
STEP = 64
BAR = 1.2
LONGEST = {"OAR-P": 1024}
ROUNDS = 3
SLOW = 20.0  # seconds from which on a point is run once, timed and counted together
METHODS: dict[str, Callable[[Any, Rollouts], Any]] = {
    "forward pass": torch.no_grad()(lambda m, r: token_logprobs(m, r.token_ids, r.attention_mask, r.response_mask)),
    "OAR-G": OarG(),
    "total effect, fast": TotalEffectFast(),
    "OAR-P approximate": OarPApproximate(),
    f"OAR-P, steps of {STEP}": OarPSteps(segments=FixedLength(STEP)),
    "OAR-P": OarP(),
}
NAMES = ("grpo", "oar_g", "total_effect_fast", "oar_p_approximate", "oar_p_steps", "oar_p")
COLORS = dict(zip(METHODS, (STYLES[name].color for name in NAMES), strict=True))
COUNTED = ("forward pass", "OAR-G", "total effect, fast", "OAR-P approximate")
"""Of a real shape."""
QWEN = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
LAYERS = 28
Point = dict[str, float]
Points = dict[str, dict[str, Point]]
"""By method and size."""


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
        prompt=PROMPT,
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


class CausalCount(FlopCount):
    """Attention that is causal by itself, without a mask, leaves half of the pairs out; they are not counted."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.total
        out = super().__torch_dispatch__(func, types, args, kwargs)
        name = func._overloadpacket.__name__
        flag = 7 if name.endswith("_backward") else 4
        if name.startswith("_scaled_dot_product_flash_attention_for_cpu") and len(args) > flag and args[flag]:
            self.total -= (self.total - before) / 2
        return out


def exponent(points: dict[str, Point], key: str, start: int) -> str:
    """Slope of a least-squares line through the logarithms, from a size on; empty for a single point."""
    found = [(math.log(int(size)), math.log(p[key])) for size, p in points.items() if int(size) >= start]
    return f"{statistics.linear_regression(*zip(*found, strict=True)).slope:.2f}" if len(found) > 1 else ""


def sizes_of(name: str, method: str) -> list[int]:
    if name == "group":
        return list(GROUPS)
    return [size for size in LENGTHS if size <= LONGEST.get(method, size)]


def sweep(name: str, methods: list[str], found: Points, save: Callable[[], None]) -> None:
    """Median CPU seconds over rounds through all points, so that a busy moment hits each once; work: the round before."""
    points = [(size, method) for size in (LENGTHS if name == "length" else GROUPS) for method in methods]
    points = [(size, method) for size, method in points if size in sizes_of(name, method)]
    taken: dict[tuple[int, str], list[float]] = {point: [] for point in points}
    for number, (size, method) in itertools.product(range(ROUNDS + 1), points):
        runs = taken[size, method]
        if number and runs and runs[0] > SLOW:
            continue
        counter = contextlib.nullcontext() if number else CausalCount()
        work, rollouts = random_texts(size, GROUP) if name == "length" else random_texts(LENGTH, size)
        started = time.process_time()
        with counter:
            METHODS[method](work.policy.model, rollouts)
        seconds = time.process_time() - started
        sys.stderr.write(f"round {number}, {name} {size}, {method}: {seconds:.3f} s\n")
        point = found.setdefault(method, {}).setdefault(str(size), {})
        if isinstance(counter, CausalCount):
            point["flop"] = counter.total
        if number or seconds > SLOW:
            runs.append(seconds)
        point |= {"seconds": statistics.median(runs or [seconds]), "runs": len(runs)}
        save()


def count_real(methods: list[str], found: Points, save: Callable[[], None]) -> None:
    """Work of the shape of Qwen2.5-1.5B, counted on weights and activations without values: all layers but the first and the
    last are alike, so that three layers and two tell what each of the others adds."""
    for method, length in itertools.product(methods, LENGTHS):
        counts = []
        for layers in (2, 3):
            with no_memory():
                model = _qwen(layers, length)
            texts = completions(GROUP, GROUP, PROMPT, length, 8, 8)
            run: Any = METHODS[method]
            if method == "OAR-P approximate":  # its estimates have no values, but they decide what is scored exactly
                run = dry_run_inputs(run, Batch(PROMPT, length, 8, 8, GROUP, 1), 2048).scorer
            with CausalCount() as counter:
                peak_bytes(partial(run, model, texts))
            counts.append(counter.total)
        flop = counts[1] + (LAYERS - 3) * (counts[1] - counts[0])
        found.setdefault(method, {})[str(length)] = {"flop": flop}
        save()
        sys.stderr.write(f"counted {length}, {method}: {flop / 1e12:.3g} TFLOP\n")


def _qwen(layers: int, length: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **QWEN, num_hidden_layers=layers, max_position_embeddings=PROMPT + length + 8, tie_word_embeddings=True
    )
    return Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


def table(name: str, sizes: tuple[int, ...], found: Points, key: str, unit: str, scale: float, starts: tuple[int, ...]) -> str:
    """One quantity of each size, with its exponents."""
    rows = [[f"{name} ({unit})", *map(str, sizes), *(f"exponent from {start}" for start in starts)]]
    for method in [m for m in METHODS if m in found]:
        points = {str(size): found[method][str(size)] for size in sizes if str(size) in found[method]}
        values = {size: p[key] / scale for size, p in points.items()}
        cells = [f"{values[s]:.3g}" if values[s] < 1000 else f"{values[s]:.0f}" for s in values]
        rows.append([method, *cells, *[""] * (len(sizes) - len(cells)), *(exponent(points, key, start) for start in starts)])
    return markdown(rows)


def tables(name: str, words: str, found: Points) -> list[str]:
    """Seconds of each size, arithmetic, and their quotient."""
    sizes, starts = (LENGTHS if name == "length" else GROUPS), FITTED_FROM[name]
    rates = {m: {s: {"rate": p["flop"] / p["seconds"]} for s, p in points.items()} for m, points in found.items()}
    return [
        table(words, sizes, found, "seconds", "s", 1.0, starts),
        table(words, sizes, found, "flop", "GFLOP", 1e9, starts),
        table(words, sizes, rates, "rate", "GFLOP/s", 1e9, ()),
    ]


def bar_table(results: dict[str, Any]) -> str:
    """Which exponents up to the longest texts meet the bar."""
    start = FITTED_FROM["length"][1]
    rows = [["exponent", "CPU seconds", "counted work", f"counted work, real shape ({LAYERS} layers of {QWEN['hidden_size']})"]]
    for method in COUNTED:
        of = ((results["length"], "seconds"), (results["length"], "flop"), (results["real"], "flop"))
        found = [exponent(points[method], key, start) for points, key in of]
        rows.append([method, *(f"{value} ({'met' if float(value) <= BAR else 'not met'})" for value in found)])
    return f"Growth from {start} to {LENGTHS[-1]} tokens, against the bar of {BAR}:\n\n{markdown(rows)}"


def plot(results: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for axis, name, sizes in zip(axes, ("length", "group"), (LENGTHS, GROUPS), strict=True):
        start = FITTED_FROM[name][1]
        for method, points in results[name].items():
            at = [int(size) for size in points]
            slope = exponent(points, "seconds", start)
            axis.plot(at, [p["seconds"] for p in points.values()], "o-", color=COLORS[method], label=f"{method}: {slope}")
            axis.plot(at, [p["flop"] / results["rate"] for p in points.values()], ":", color=COLORS[method])
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(title=f"exponent from {start} on", loc="upper left", fontsize="small")
    axes[0].set(
        xlabel=f"tokens of a completion (group of {GROUP})", ylabel="CPU seconds of scoring (dotted: arithmetic at matrix rate)"
    )
    axes[1].set(xlabel=f"completions of a group ({LENGTH} tokens each)")
    axes[1].yaxis.set_tick_params(labelleft=True)
    figure.savefig(HERE / "growth.png", dpi=130)


def write(results: dict[str, Any]) -> None:
    plot(results)
    rate = f"{results['machine']}. Matrix products reach {results['rate'] / 1e9:.0f} GFLOP/s."
    real = table("tokens, real shape", LENGTHS, results["real"], "flop", "TFLOP", 1e12, FITTED_FROM["length"])
    fill(
        HERE / "README.md",
        "\n\n".join(
            [
                rate,
                bar_table(results),
                *tables("length", "tokens", results["length"]),
                real,
                *tables("group", "group", results["group"]),
            ]
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["length", "real", "group"]
    parser.add_argument("--sweeps", nargs="*", default=names, choices=names, help="what to measure anew")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS, help="of which methods")
    options = parser.parse_args()
    stored = HERE / "results.json"
    results: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}

    def save() -> None:
        stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    torch.set_num_threads(1)  # CPU seconds of one thread depend little on what else a shared machine does
    if {"length", "group"} & set(options.sweeps):
        work, _ = random_texts(LENGTH, GROUP)
        results |= {"machine": machine(work), "rate": matrix_rate(torch.device("cpu"), torch.float32)}
    for name in options.sweeps:
        found = results.setdefault(name, {})
        if name == "real":
            count_real([method for method in COUNTED if method in options.methods], found, save)
        else:
            sweep(name, options.methods, found, save)
        save()
    if set(names) <= results.keys():
        write(results)


if __name__ == "__main__":
    main()
