"""Approximate OAR-P against exact OAR-P on sampled completions of the built-in task.

    python reports/oar_p_agreement/measure.py [--policy grpo=RUN_FOLDER/policy ...]

writes results.json and the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oar_lightning.wiring.device import seed_everything
from oar_lightning.wiring.policy import load_policy

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.benchmark import ConfiguredWorkload
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import generator
from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.scorers import Attribution, OarP, OarPApproximate, Scorer, Spans
from oar_lightning.credit.scorers.base import distinct_rows, scorable_rows
from oar_lightning.data.stream import ProblemStream
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.rollout import build_stage
from oar_lightning.tasks.benchmark import machine
from oar_lightning.types import Rollouts
from oar_lightning.wiring.settings import build_settings

HERE = Path(__file__).parent
BARS = {"spearman": 0.9, "recall": 0.85}
EDGES = (0, 29, 41, 10**9)  # reasoning tokens: a step of the task takes 11 or so, so these are 2, 3 and 4 steps
FIRST_ORDER = {2: (4.8,), 3: (0, 4.4, 4.8, 5.2, 6, 8, 10), 4: (4.8, 5.8, 8), 7: (8, 10)}
LATE_SHARES = (0, 0.5, 0.75)
SPANS = {4: (8,), 8: (4.8, 8)}


def approximate(coarse: Attribution | Spans, budget: float) -> OarPApproximate:
    return OarPApproximate(coarse=coarse, budget=budget)


SETTINGS: dict[str, OarPApproximate] = (
    {f"directions {d}, budget {b:g}": approximate(Attribution(d), b) for d, budgets in FIRST_ORDER.items() for b in budgets}
    | {f"directions 3, budget 4.8, late share {s:g}": approximate(Attribution(3, s), 4.8) for s in LATE_SHARES}
    | {f"spans of {n}, budget {b:g}": approximate(Spans(n), b) for n, budgets in SPANS.items() for b in budgets}
)
BY_LENGTH = ("directions 3, budget 4.8", "directions 3, budget 8")  # the first is the default
TIMED = [n for n in SETTINGS if n.startswith("directions 3") or n == "spans of 8, budget 4.8"]
Found = dict[str, list[float]]


def sampled(policy: str, problems: int) -> tuple[Any, Rollouts, str]:
    """The default run's completions whose credit its update would use, each different one once; and the machine."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        named = ["policy=chain"] if policy == "chain" else ["policy=hf", f"policy.name={policy}"]
        cfg = compose("config", ["task=benchmark", "benchmark=tiny", *named])
    settings = build_settings(cfg)
    seed_everything(0)
    loaded = load_policy(settings.policy, "benchmark", torch.device("cpu"))
    prompt = instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer)
    stage = build_stage(loaded, prompt, settings.answer, settings.rewards)
    group = settings.method.update.group_size
    assert settings.train is not None
    work = ConfiguredWorkload(loaded, stage, ProblemStream(settings.train, 0), problems, group, settings.method.sampling)
    rollouts = work.judge(work.sample(0), 0)
    advantages = group_advantages(rollouts.reward_terms, stage.rewards.weight_vector(), group, settings.method.advantage)
    rows = scorable_rows(rollouts)
    rows = rows[advantages[rows] != 0]
    part = rollouts.select(rows[distinct_rows(rollouts, rows)[0]])
    # the sampler's states are the float32 policy's; without them every method includes the clean pass
    return loaded.model, dataclasses.replace(part, prediction_states=None), machine(work)


def agreement(expected: Tensor, actual: Tensor, mask: Tensor) -> Found:
    """Spearman correlation and recall of the top 10 % tokens, completion by completion."""
    found: Found = {"spearman": [], "recall": []}
    for a, b in ((expected[i, m].double(), actual[i, m].double()) for i, m in enumerate(mask)):
        k = max(1, round(0.1 * len(a)))
        found["spearman"].append(rank_correlation(a.numpy(), b.numpy()))
        found["recall"].append(len({*a.topk(k).indices.tolist()} & {*b.topk(k).indices.tolist()}) / k)
    return found


def interval(values: list[float], draws: int = 2000) -> list[float]:
    """Mean and its bootstrap 95 % interval over completions."""
    x = torch.tensor(values, dtype=torch.float64)
    means = x[torch.randint(len(x), (draws, len(x)), generator=generator("bootstrap"))].mean(1)
    return [round(float(v), 4) for v in (x.mean(), *means.quantile(x.new_tensor([0.025, 0.975])))]


def summary(found: Found, bins: dict[str, Tensor]) -> dict[str, dict[str, list[float]]]:
    return {name: {k: interval([found[k][i] for i in rows.tolist()]) for k in BARS} for name, rows in bins.items()}


def seconds_in_turns(model: Any, rollouts: Rollouts, scorers: Mapping[str, Scorer], rounds: int) -> dict[str, float]:
    """Median seconds of each scorer after a round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in scorers}
    for number, (name, scorer) in itertools.product(range(rounds + 1), scorers.items()):
        started = time.perf_counter()
        scorer(model, rollouts)
        if number:
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in taken.items()}


def study(name: str, policy: str, problems: int, parts: str, known: dict[str, Any]) -> dict[str, Any]:
    model, rollouts, words = sampled(policy, problems)
    mask, counts = rollouts.reasoning_mask, rollouts.reasoning_mask.sum(1)
    cut = [((counts > low) & (counts <= high)).nonzero().flatten() for low, high in itertools.pairwise(EDGES)]
    bins = {f"{int(counts[rows].min())} to {int(counts[rows].max())}": rows for rows in cut if len(rows)}
    bins["all"] = torch.arange(len(counts))
    scorers: dict[str, Scorer] = {"exact": OarP(), **SETTINGS}
    result = known | {"machine": words, "completions": {n: len(rows) for n, rows in bins.items()}}
    if parts != "agreement":
        some = rollouts.select(bins["all"][::3])  # every third completion is enough for a ratio
        result["seconds"] = seconds_in_turns(model.float(), some, {n: scorers[n] for n in ("exact", *TIMED)}, 5)
    if parts == "seconds":
        return result
    scores: dict[tuple[str, str], Tensor] = {}
    result["forward_equivalents"] = {}
    for done, (method, scorer) in enumerate(scorers.items()):
        sys.stderr.write(f"\r{name}: {done + 1} of {len(scorers)} scorers, {method:30}")
        for dtype in (torch.float64, torch.float32):
            scores[method, str(dtype)[6:]] = scorer(model.to(dtype), rollouts)
        result["forward_equivalents"][method] = round(scorer.metrics["forward_equivalents"], 2)
    sys.stderr.write("\n")
    result["agreement"] = {
        f"{method}, {dtype}": summary(agreement(scores["exact", "float64"], scores[method, dtype], mask), bins)
        for method in scorers
        for dtype in ("float32", "float64")
    }
    return result


def tables(results: dict[str, dict[str, Any]]) -> str:
    pieces = [next(iter(results.values()))["machine"] + "."]
    for policy, result in results.items():
        found, cost, seconds = result["agreement"], result["forward_equivalents"], result["seconds"]

        def cells(method: str, part: str, found: Any = found) -> list[str]:
            parts = [(*found[f"{method}, float32"][part][key], bar) for key, bar in BARS.items()]
            texts = [(f"{mean:.3f} [{low:.3f}, {high:.3f}]", mean >= bar) for mean, low, high, bar in parts]
            return [f"**{text}**" if met else text for text, met in texts]

        rows = [["setting", "Spearman", "recall", "forward-equivalents", "seconds / exact"]]
        for method in [*SETTINGS, "exact"]:
            ratio = f"{seconds[method] / seconds['exact']:.2f}" if method in seconds else ""
            rows.append([method, *cells(method, "all"), f"{cost[method]:.1f}", ratio])
        sizes = result["completions"]
        lengths = [["reasoning tokens", "completions", *(f"{m}: {k}" for m in BY_LENGTH for k in BARS)]]
        lengths += [[part, str(n), *(c for m in BY_LENGTH for c in cells(m, part))] for part, n in sizes.items()]
        pieces += [f"## Policy `{policy}`, {sizes['all']} completions", markdown(rows), "By length:", markdown(lengths)]
    return "\n\n".join(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="*", default=[], metavar="NAME=FOLDER", help="policies beside the built-in one")
    parser.add_argument("--problems", type=int, default=24, help="of eight completions each")
    parser.add_argument("--parts", choices=["all", "agreement", "seconds", "page"], default="all", help="what to do anew")
    options = parser.parse_args()
    stored = HERE / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if options.parts != "all" and stored.exists() else {}
    if options.parts != "page":
        for name, policy in {"chain": "chain", **dict(p.split("=", 1) for p in options.policy)}.items():
            results[name] = study(name, policy, options.problems, options.parts, results.get(name, {}))
        stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fill(HERE / "README.md", tables(results))


if __name__ == "__main__":
    main()
