"""How far a truth, or an estimate, agrees with itself drawn again, and how well anything can agree with it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oar_lightning.lab.agreement import auroc, spearman
from oar_lightning.lab.types import ROUNDING, Estimate, Measure, Studied, Truth


@dataclass(frozen=True)
class Reliability:
    """Of a truth, means over completions; correlations are Spearman's over free tokens.

    `size` and `direction` are those of the draws of both halves, by the halves' correlation and the formula of Spearman and
    Brown: of the whole truth or, where some prefixes had more draws, a little less than that.
    `half_auroc`: one half's sizes as scores, the other half's decisive tokens as labels.
    """

    size: float
    direction: float
    half_auroc: float


def reliability(truth: Truth, studied: Studied, decisive: float) -> Reliability | None:
    """The reliability of a truth that was drawn; None for an exact one. Completions without a second half are left out."""
    if truth.halves is None:
        return None
    free = (studied.free & truth.known).cpu()
    known = truth.known.cpu()
    sizes, directions, areas = [], [], []
    for i in range(len(free)):
        one, other = (half[i].cpu().numpy() for half in truth.halves)
        among, over = free[i].numpy(), known[i].numpy()
        if not np.isfinite(one[over] + other[over]).all():
            continue
        sizes.append(_agreement(np.abs(one[among]), np.abs(other[among])))
        directions.append(_agreement(one[among], other[among]))
        for scores, labels in ((one, other), (other, one)):
            areas.append(auroc(np.abs(scores[over]), np.abs(labels[over]) >= decisive - ROUNDING))
    return Reliability(spearman_brown(mean(sizes)), spearman_brown(mean(directions)), mean(areas))


def spearman_brown(half: float) -> float:
    """The reliability of a mean of two halves that correlate so; 0 where they do not."""
    return 2 * half / (1 + half) if half > 0 else (half if math.isnan(half) else 0.0)


def own_reliability(truth: Truth, estimate: Estimate, studied: Studied, sizes: bool = True) -> float:
    """The correlation of an estimate's sizes, or of its scores with their signs, with those of other draws, over the free
    tokens; 1 where it draws nothing."""
    if estimate.again is None:
        return 1.0
    found = []
    for one, other, among in zip(estimate.scores, estimate.again, studied.free & truth.known, strict=True):
        pair = [scores[among].double().cpu().numpy() for scores in (one, other)]
        if all(np.isfinite(part).all() for part in pair):
            found.append(_agreement(*map(np.abs, pair)) if sizes else _agreement(*pair))
    agreement = mean(found)
    return agreement if math.isnan(agreement) else max(0.0, agreement)


def _agreement(one: np.ndarray, other: np.ndarray) -> float:
    """The rank correlation of two measurements of one thing, whichever comes first: 0 where one alone is constant, NaN where
    both are."""
    return mean([spearman(one, other), spearman(other, one)])


def with_ceilings(
    measures: Sequence[Measure], truth: Truth, found: Reliability | None, estimates: Sequence[Estimate], studied: Studied
) -> list[Measure]:
    """The measures of correlation with what can be attained in them: sqrt(reliability of estimate and of truth)."""
    if found is None:
        return list(measures)
    correlations = (("spearman_free", found.size, True), ("direction_free", found.direction, False))
    limits = {f"{truth.name}.{key}": (limit, sizes) for key, limit, sizes in correlations if not math.isnan(limit)}

    def ceilings(measure: Measure) -> dict[str, float]:
        limit, sizes = limits[measure.key]
        own = {e.name: own_reliability(truth, e, studied, sizes) for e in estimates}
        said = {e.name: 1.0 if sizes else _with_advantages(e, measure.values[e.name]) for e in estimates}
        return {
            name: said[name] * math.sqrt(limit * value) for name, value in own.items() if not math.isnan(value + said[name])
        }

    return [dataclasses.replace(m, ceiling=ceilings(m)) if m.key in limits else m for m in measures]


def _with_advantages(estimate: Estimate, values: Sequence[float]) -> float:
    """The share of the completions with a value whose token advantages are not all 0, as they are in groups of equal rewards;
    such a completion has a correlation of 0, whatever the scores."""
    return mean([float(row.any()) for row, value in zip(estimate.advantages, values, strict=True) if not math.isnan(value)])


def mean(values: Sequence[float]) -> float:
    """The mean of those that are not NaN; NaN without any."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
