"""Deletion and insertion curves, and what follows from them: comprehensiveness and sufficiency (ERASER, arXiv 1911.03429)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.scorers.base import scorable_rows
from oar_lightning.credit.scorers.oar_p.fills import FILLS, FillName
from oar_lightning.lab.comparison import above_zero
from oar_lightning.lab.removal.kept_reward import KeptReward
from oar_lightning.lab.removal.orders import FRACTIONS, RISING, SOME_FILLS, first_share, ranks
from oar_lightning.lab.removal.sets import Outcome, Sets, evaluate
from oar_lightning.lab.types import Curve, Measure
from oar_lightning.types import Rollouts

FILLED: dict[FillName, str] = {
    "pad": "the pad token in their place",
    "mean_embedding": "the mean embedding in their place",
    "random_token": "random tokens in their place",
    "model_sample": "what the policy might have written in their place",
}
WORDS = {"comprehensiveness": "without the first tokens", "sufficiency": "with the first tokens alone"}
BETTER: dict[str, Literal["high", "low"]] = {"comprehensiveness": "high", "sufficiency": "low"}
KINDS = (("comprehensiveness", False, "deletion"), ("sufficiency", True, "insertion"))
"""What is measured, whether the first tokens are kept or removed, and the curve that it is a mean of."""


@checked("", SOME_FILLS, RISING)
@dataclass(frozen=True)
class RemovalConfig:
    """What is removed, and what takes its place.

    Args:
        fills: what replaces a token (see `OarP`).
        fractions: of a completion's reasoning tokens, rounded up; comprehensiveness and sufficiency are means over them.
        seed: of the order of equal scores.
    """

    fills: Sequence[FillName] = tuple(FILLS)
    fractions: Sequence[float] = FRACTIONS
    seed: int = 0


class Removals(NamedTuple):
    """What removal has found."""

    measures: list[Measure]
    curves: list[Curve]


def direct_removal(
    outcome: Outcome,
    rollouts: Rollouts,
    scores: Mapping[str, Float[Tensor, "B S"]],
    config: RemovalConfig,
    key: str = "direct",
    unit: str = "nats",
    rows: Int[Tensor, " n"] | None = None,
) -> Removals:
    """Sets of tokens replaced at once, the rest as written.

    Comprehensiveness is f(x) - f(x without the tokens that rank first), sufficiency f(x) - f(x with these alone), both the mean
    over the fractions (AOPC); NaN for completions without reasoning or answer, for those not among `rows`, and where scores are
    NaN. The curves also hold 0 and all tokens.
    """
    orders = Orders.of(rollouts, scores, config.seed, rows)
    fractions = (0.0, *config.fractions, 1.0)
    found = Removals([], [])
    for fill in config.fills:
        for kind, keep, curve in KINDS:
            sets = [[orders.removed(name, q, keep) for q in fractions] for name in scores]
            outcomes = orders.outcomes(outcome, fill, sets)
            clean = outcomes[:, -1:] if keep else outcomes[:, :1]
            falls = named((clean - outcomes[:, 1:-1]).mean(1), scores)
            title = f"{unit}, {WORDS[kind]}, {FILLED[fill]}"
            found.measures.append(Measure(f"{key}.{fill}.{kind}", f"fall of the outcome, {title}", BETTER[kind], falls))
            means = named(outcomes.nanmean(2), scores)
            found.curves.append(Curve(f"{key}.{fill}.{curve}", f"outcome, {title}", fractions, means))
    return found


def total_removal(
    outcome: KeptReward,
    rollouts: Rollouts,
    scores: Mapping[str, Float[Tensor, "B S"]],
    config: RemovalConfig,
    rows: Int[Tensor, " n"] | None = None,
) -> Removals:
    """One token replaced at a time and everything after it sampled: the mean effect of the tokens that rank first.

    Where the text after the first removed token is sampled anew, there is no second one to remove; so the tokens are taken one
    by one (`KeptReward.total_effects`). Comprehensiveness is their mean effect, and its mean over the fractions.
    """
    orders = Orders.of(rollouts, scores, config.seed, rows)
    sets = {name: [orders.removed(name, q, False) for q in config.fractions] for name in scores}
    wanted = torch.zeros_like(orders.valid)
    wanted[orders.rows] = torch.stack([of_name[-1] for of_name in sets.values()]).any(0)
    effects = outcome.total_effects(wanted, config.fills)
    found = Removals([], [])
    for fill in config.fills:
        own = effects[fill][orders.rows]
        means = torch.full((len(scores), len(config.fractions), len(rollouts)), torch.nan, dtype=own.dtype, device=own.device)
        for n, of_name in enumerate(sets.values()):
            for q, first in enumerate(of_name):
                means[n, q, orders.rows] = own.masked_fill(~first, 0.0).sum(1) / first.sum(1)
        means = means.masked_fill(orders.unknown[:, None], torch.nan)
        title = f"fall of the probability that the reward stays, by one of the first tokens, {FILLED[fill]}"
        found.measures.append(Measure(f"total.{fill}.comprehensiveness", title, "high", named(means.mean(1), scores)))
        found.curves.append(Curve(f"total.{fill}.effect", title, tuple(config.fractions), named(means.nanmean(2), scores)))
    return found


@dataclass(frozen=True)
class Orders:
    """The ranks of every estimator's tokens, for some rows that have reasoning and an answer, by default all.

    ``unknown``: the rows of which an estimator's scores are NaN.
    """

    rows: Int[Tensor, " n"]
    valid: Bool[Tensor, "B R"]
    ranks: Mapping[str, Int[Tensor, "B R"]]
    unknown: Bool[Tensor, "M B"]

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        scores: Mapping[str, Float[Tensor, "B S"]],
        seed: int,
        rows: Int[Tensor, " n"] | None = None,
    ) -> Orders:
        counts = rollouts.reasoning_mask.sum(1, keepdim=True)
        valid = torch.arange(max(1, int(counts.max())), device=counts.device) < counts
        found = {name: ranks(s, rollouts, seed) for name, s in scores.items()}
        unknown = torch.stack([(s.isnan() & rollouts.reasoning_mask).any(1) for s in scores.values()])
        return cls(scorable_rows(rollouts) if rows is None else rows, valid, found, unknown)

    def removed(self, name: str, fraction: float, keep: bool) -> Bool[Tensor, "n R"]:
        """The tokens that rank first, or with `keep` all others."""
        valid = self.valid[self.rows]
        first = first_share(self.ranks[name][self.rows], valid.sum(1).tolist(), fraction)
        return valid & ~first if keep else valid & first

    def outcomes(
        self, outcome: Outcome, fill: FillName, removed: Sequence[Sequence[Bool[Tensor, "n R"]]]
    ) -> Float[Tensor, "M Q B"]:
        """The outcomes of sets [M][Q], each of all rows; NaN for rows that cannot be scored."""
        stacked = torch.stack([torch.stack(list(of_name)) for of_name in removed])
        shape = stacked.shape[:2]
        sets = Sets(self.rows.expand(*shape, -1).reshape(-1), stacked.flatten(0, 2))
        found = torch.full((*shape, len(self.valid)), torch.nan, dtype=torch.float64, device=self.rows.device)
        found[..., self.rows] = evaluate(outcome, sets, fill).double().view(*shape, -1)
        return found.masked_fill(self.unknown[:, None], torch.nan)


def named(values: Float[Tensor, "M n"], names: Mapping[str, object]) -> dict[str, tuple[float, ...]]:
    """Rows by estimator."""
    return {name: tuple(row) for name, row in zip(names, values.tolist(), strict=True)}


def normalized(measure: Measure, problem: Sequence[int], random: str = "random", oracle: str = "oracle") -> Measure:
    """(random - method) / (random - oracle): 0 for the order named `random`, 1 for that named `oracle`.

    The denominator is the difference of their means over completions, so that the mean of the values is the ratio of means. All
    is NaN where the oracle's order does not lead the random one by two standard errors over problems: there is then nothing to
    divide by. `problem`: the number of each completion's problem.
    """
    values = {name: torch.tensor(row, dtype=torch.float64) for name, row in measure.values.items()}
    if missing := [name for name in (random, oracle) if name not in values]:
        raise KeyError(f"{measure.key} has no estimator {missing[0]}; there are {', '.join(values)}")
    gaps = values[random] - values[oracle]
    sign = 1 if measure.better == "low" else -1
    clear = above_zero((sign * gaps).tolist(), problem)
    ratios = {name: (values[random] - row) / (gaps.nanmean() if clear else torch.nan) for name, row in values.items()}
    return dataclasses.replace(
        measure,
        key=f"{measure.key}_normalized",
        title=f"{measure.title}; random order 0, oracle's 1",
        better="high",
        values={name: tuple(row.tolist()) for name, row in ratios.items()},
        chance=0.0,
    )
