"""Estimates of credit against Monte-Carlo truth, on completions of a variant of the built-in task.

    python reports/total_effect/measure.py [--completions 24] [--samples 48] [--parts all|scores|page]

Truth: V after minus V before each free token (p < 0.98), V the success rate of sampled continuations, drawn twice. A token is
decisive where the mean of both differences is at least 0.3 in size. Writes results.json and the table of README.md beside
this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from oar_lightning.wiring.device import seed_everything, set_threads

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import generator
from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.freedom import FREE_BELOW
from oar_lightning.credit.predictions import predictions
from oar_lightning.credit.scorers import MonteCarlo, OarG, OarP, OarPApproximate, Scorer, TotalEffect, TotalEffectFast
from oar_lightning.credit.scorers.base import scorable_rows
from oar_lightning.credit.segments import Segmenter
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import build_stage
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.types import Rollouts
from oar_lightning.wiring.settings import build_settings

HERE = Path(__file__).parent
DECISIVE = 0.3
BUDGET = TokenBudget("measure", 4096)


@dataclass(frozen=True)
class AroundFree(Segmenter):
    """Cuts before and after each free token."""

    def cuts(self, model: Any, rollouts: Rollouts, mask: Tensor) -> Tensor:
        free = mask & (predictions(model, rollouts, mask, BUDGET).logprobs.exp() < FREE_BELOW)
        return free | (torch.nn.functional.pad(free[:, :-1], (1, 0)) & mask)


class Sampled(NamedTuple):
    model: Any
    rollouts: Rollouts
    halves: Tensor
    """[2 B S]: two estimates of the difference of values at each free token, 0 elsewhere."""


def sample(overrides: list[str], completions: int, samples: int, known: Tensor | None = None) -> Sampled:
    """Completions of different problems, and the truth about them unless it is known."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", overrides)
    settings = build_settings(cfg)
    seed_everything(0)
    assert isinstance(settings.policy, PretrainedPolicy)
    loaded = settings.policy.load()
    stage = build_stage(loaded, instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer), settings.answer, settings.rewards)
    assert settings.train is not None
    problems = ProblemStream(settings.train, 0).take(completions)
    rollouts = stage(loaded.model, problems, 1, settings.method.sampling, list(range(completions)), 0)
    rollouts = dataclasses.replace(rollouts.select(scorable_rows(rollouts)), prediction_states=None)
    rollouts = dataclasses.replace(rollouts, advantages=torch.ones_like(rollouts.rewards))
    halves = truth(loaded.model, rollouts, stage, settings.method.sampling, samples) if known is None else known
    return Sampled(loaded.model, rollouts, halves)


def truth(model: Any, rollouts: Rollouts, stage: Any, sampling: Any, samples: int) -> Tensor:
    """Two estimates of each free token's difference of values."""
    tools = RolloutTools(stage, sampling)
    found = torch.zeros(2, *rollouts.token_ids.shape)
    for half, row in itertools.product(range(2), range(len(rollouts))):  # all at once would not fit into memory
        sys.stderr.write(f"\rtruth {half + 1} of 2, completion {row + 1} of {len(rollouts)}  ")
        rows = torch.tensor([row])
        scorer = MonteCarlo(AroundFree(), samples, most_segments=None, seed=half)
        scorer.use(tools)
        found[half, row, rollouts.columns(rows)] = scorer(model, rollouts.select(rows))[0]
    return found.masked_fill(~free_tokens(model, rollouts), 0.0)


def free_tokens(model: Any, rollouts: Rollouts) -> Tensor:
    found = predictions(model, rollouts, rollouts.reasoning_mask, BUDGET).logprobs
    return rollouts.reasoning_mask & (found.exp() < FREE_BELOW)


def digits(rollouts: Rollouts) -> Tensor:
    """1 on tokens that hold a digit: the trivial baseline on this task."""
    out = torch.zeros(rollouts.token_ids.shape)
    for row, (text, spans) in enumerate(zip(rollouts.completions, rollouts.token_spans, strict=True)):
        out[row, rollouts.response_mask[row]] = torch.tensor([any(c.isdigit() for c in text[a:b]) for a, b in spans]).float()
    return out * rollouts.reasoning_mask


def auroc(scores: Tensor, wanted: Tensor) -> float:
    """P(score of a wanted token > that of another) + P(equal) / 2."""
    positive, negative = scores[wanted].double(), scores[~wanted].double()
    return float(((positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()).mean())


class Table(NamedTuple):
    """What a method's scores are compared with, completion by completion."""

    mask: Tensor
    free: Tensor
    decisive: Tensor
    digits: Tensor
    exact: Tensor
    """Exact total effects, with the same freedom as those compared."""

    def pooled(self, scores: Tensor, rows: Tensor) -> float:
        """AUROC over all reasoning tokens of some completions."""
        return auroc(scores[rows][self.mask[rows]], self.decisive[rows][self.mask[rows]])

    def among_free(self, scores: Tensor, rows: Tensor) -> float:
        return auroc(scores[rows][self.free[rows]], self.decisive[rows][self.free[rows]])

    def among_digits(self, scores: Tensor, rows: Tensor) -> float:
        """AUROC over free tokens with a digit, which the trivial baseline cannot tell apart."""
        wanted = self.free[rows] & self.digits[rows]
        return auroc(scores[rows][wanted], self.decisive[rows][wanted])

    def agreement(self, scores: Tensor, rows: Tensor) -> float:
        """Mean Spearman correlation with the exact scores."""
        pairs = [(scores[i, self.mask[i]].numpy(), self.exact[i, self.mask[i]].numpy()) for i in rows.tolist()]
        return sum(rank_correlation(*pair) for pair in pairs) / len(rows)


def interval(value: Callable[[Tensor], float], count: int, draws: int = 300) -> list[float]:
    """A statistic of all completions, and its bootstrap 95 % interval over completions."""
    rng = generator("bootstrap")
    found: list[float] = []
    while len(found) < draws:
        drawn = value(torch.randint(count, (count,), generator=rng))
        if drawn == drawn:  # no decisive token was drawn
            found.append(drawn)
    bounds = torch.tensor(found, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return [round(float(v), 4) for v in (value(torch.arange(count)), *bounds)]


def methods() -> dict[str, tuple[Scorer, str]]:
    """Scorers, and the `freedom` of the exact scores that they are compared with."""
    found: dict[str, tuple[Scorer, str]] = {}
    freedoms: tuple[Literal["none", "weight", "mask"], ...] = ("none", "weight", "mask")
    for freedom in freedoms:
        found[f"total effect, freedom {freedom}"] = TotalEffect(freedom=freedom), freedom
    found["total effect, 4 draws"] = TotalEffect(num_draws=4, seed=1), "weight"
    found["total effect, pad"] = TotalEffect(fill="pad"), "weight"
    found["total effect, all tokens run"] = TotalEffect(free_below=1.0), "weight"
    for rounds in (1, 2, 3, 5):
        found[f"fast, {rounds} round{'s' * (rounds > 1)}"] = TotalEffectFast(rounds), "weight"
    found["fast, freedom none"] = TotalEffectFast(freedom="none"), "none"
    found["fast, 1 draw"] = TotalEffectFast(num_draws=1), "weight"
    for freedom in freedoms[:2]:
        found[f"OAR-P, freedom {freedom}"] = OarP(freedom=freedom), freedom
        found[f"OAR-P, model sample, freedom {freedom}"] = OarP(fill="model_sample", freedom=freedom), freedom
        found[f"OAR-P approximate, freedom {freedom}"] = OarPApproximate(freedom=freedom), freedom
        found[f"OAR-G, freedom {freedom}"] = OarG(freedom=freedom), freedom
    return found


def study(sampled: Sampled) -> dict[str, Any]:
    model, rollouts, halves = sampled
    mask, free, truth = rollouts.reasoning_mask, free_tokens(model, rollouts), halves.mean(0)
    decisive = truth.abs() >= DECISIVE
    found = predictions(model, rollouts, mask, BUDGET)
    # four draws of its own seeds, not those of the methods
    exact = {f: TotalEffect(num_draws=4, seed=100, freedom=f)(model, rollouts) for f in ("none", "weight")}
    exact["mask"] = exact["none"] * free
    scores: dict[str, tuple[Tensor, str, float | None]] = {
        "1 - p": ((1 - found.logprobs.exp()) * mask, "weight", None),
        "entropy": (found.entropy, "weight", None),
        "is a digit": (digits(rollouts), "weight", None),
    }
    for name, (scorer, freedom) in methods().items():
        sys.stderr.write(f"\r{name:40}")
        values = scorer(model, rollouts)
        scores[name] = values, freedom, scorer.metrics["forward_equivalents"]
    sys.stderr.write("\n")
    result: dict[str, Any] = {
        "completions": len(rollouts),
        "tokens": int(mask.sum()),
        "free": int(free.sum()),
        "decisive": int(decisive.sum()),
        "decisive digits": int((decisive & (digits(rollouts) > 0)).sum()),
        "free digits": int((free & (digits(rollouts) > 0)).sum()),
        "reliability": float(torch.corrcoef(halves[:, free])[0, 1]),
        "correct": float(rollouts.rewards.mean()),
        "methods": {},
    }
    for name, (values, freedom, cost) in scores.items():
        table = Table(mask, free, decisive, digits(rollouts) > 0, exact[freedom])
        columns = {
            "pooled": table.pooled,
            "free": table.among_free,
            "digits": table.among_digits,
            "agreement": table.agreement,
        }
        rows = {key: interval(partial(compare, values), len(rollouts)) for key, compare in columns.items()}
        result["methods"][name] = rows | {"cost": cost}
    return result


def tables(result: dict[str, Any]) -> str:
    words = (
        f"{result['completions']} completions, {100 * result['correct']:.0f} % of them right; {result['tokens']} reasoning "
        f"tokens, {result['free']} of them free, {result['decisive']} decisive. {result['free digits']} free tokens have a "
        f"digit, among them {result['decisive digits']} of the decisive. Two estimates of each difference, of "
        f"{result['samples']} continuations a value, correlate at {result['reliability']:.2f} over the free tokens."
    )
    rows = [["scores", "AUROC", "among free", "among free digits", "Spearman with exact", "forward-equivalents"]]
    for name, found in result["methods"].items():
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*found[key]) for key in ("pooled", "free", "digits", "agreement")]
        rows.append([name, *cells, "" if found["cost"] is None else f"{found['cost']:.1f}"])
    return f"{words}\n\n{markdown(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=24)
    parser.add_argument("--samples", type=int, default=48, help="continuations for each of two estimates of a value")
    parser.add_argument(
        "--parts", choices=["all", "scores", "page"], default="all", help="what to do anew: scores keeps the truth"
    )
    parser.add_argument("--truth", type=Path, default=Path("truth.pt"), help="where the truth is kept between runs")
    options = parser.parse_args()
    set_threads(1)
    stored = HERE / "results.json"
    if options.parts != "page":
        known = torch.load(options.truth) if options.parts == "scores" else None
        sampled = sample(["+variant=asides"], options.completions, options.samples, known)
        torch.save(sampled.halves, options.truth)
        result = study(sampled) | {"samples": options.samples}
        stored.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    fill(HERE / "README.md", tables(json.loads(stored.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
