"""How well estimates agree with each truth, completion by completion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from oar_lightning.lab import agreement
from oar_lightning.lab.agreement import Marks, Scores
from oar_lightning.lab.types import Estimate, Measure, Studied, Truth


class Row(NamedTuple):
    """One completion's tokens of which a truth knows something; scores by size."""

    scores: Scores
    advantages: Scores
    decisive: Marks
    free: Marks
    values: Scores
    steps: Scores


class Kind(NamedTuple):
    """A measure of agreement. `of`: the truths that it is for. `chance`: where random scores have the same value everywhere."""

    key: str
    title: str
    value: Callable[[Row], float]
    of: Callable[[Truth], bool]
    chance: float | None = None


def _labels(truth: Truth) -> bool:
    return True


def _values(truth: Truth) -> bool:
    return truth.values is not None


def _errors(truth: Truth) -> bool:
    return truth.steps is not None


def _tokens(truth: Truth) -> bool:
    return _errors(truth) and not truth.whole_steps


def _right_step(row: Row) -> float:
    wrong = set(row.steps[row.decisive].tolist()) - {-1}
    return agreement.hit_at_1(row.scores, np.isin(row.steps, list(wrong))) if wrong else math.nan


KINDS: tuple[Kind, ...] = (
    Kind("auroc", "AUROC", lambda r: agreement.auroc(r.scores, r.decisive), _labels, 0.5),
    Kind(
        "auroc_free", "AUROC among free tokens", lambda r: agreement.auroc(r.scores[r.free], r.decisive[r.free]), _labels, 0.5
    ),
    Kind("ap", "average precision", lambda r: agreement.average_precision(r.scores, r.decisive), _labels),
    Kind("recall_10", "recall in the top 10 %", lambda r: agreement.recall_at(r.scores, r.decisive), _labels),
    Kind(
        "recall_10_normalized",
        "recall in the top 10 %, of what fits",
        lambda r: agreement.recall_at(r.scores, r.decisive, normalized=True),
        _labels,
    ),
    Kind("r_precision", "R-precision", lambda r: agreement.r_precision(r.scores, r.decisive), _labels),
    Kind("hit_1", "top token is the first error", lambda r: agreement.hit_at_1(r.scores, r.decisive), _tokens),
    Kind("right_step", "top token is in the first wrong step", _right_step, _errors),
    Kind("reciprocal_rank", "reciprocal rank", lambda r: agreement.reciprocal_rank(r.scores, r.decisive), _tokens),
    Kind("spearman", "Spearman of sizes", lambda r: agreement.spearman(r.scores, np.abs(r.values)), _values, 0.0),
    Kind(
        "spearman_free",
        "Spearman of sizes among free tokens",
        lambda r: agreement.spearman(r.scores[r.free], np.abs(r.values[r.free])),
        _values,
        0.0,
    ),
    Kind(
        "direction_free",
        "Spearman of token advantages among free tokens",
        lambda r: agreement.spearman(r.advantages[r.free], r.values[r.free]),
        _values,
        0.0,
    ),
    Kind(
        "sign",
        "sign of decisive tokens",
        lambda r: agreement.sign_agreement(r.advantages[r.decisive], r.values[r.decisive]),
        _values,
        0.5,
    ),
    Kind(
        "sign_free",
        "sign of free tokens",
        lambda r: agreement.sign_agreement(r.advantages[r.free], r.values[r.free]),
        _values,
        0.5,
    ),
)


def measures_of(truth: Truth, estimates: Sequence[Estimate], studied: Studied) -> list[Measure]:
    """All measures that the truth allows."""
    kinds = [kind for kind in KINDS if kind.of(truth)]
    rows = {estimate.name: list(rows_of(truth, estimate, studied)) for estimate in estimates}
    return [
        Measure(
            key=f"{truth.name}.{kind.key}",
            title=kind.title,
            better="high",
            values={name: tuple(math.nan if row is None else kind.value(row) for row in found) for name, found in rows.items()},
            chance=kind.chance,
        )
        for kind in kinds
    ]


def rows_of(truth: Truth, estimate: Estimate, studied: Studied) -> Iterator[Row | None]:
    """The completions' rows; None for a completion of which the truth knows nothing, or whose scores are not numbers."""
    for i, known in enumerate(truth.known):
        if not bool(known.any()) or bool(estimate.scores[i, known].isnan().any()):
            yield None
            continue
        values = truth.values[i, known] if truth.values is not None else known[known] * math.nan
        steps = truth.steps[i, known] if truth.steps is not None else known[known] * -1
        yield Row(
            np.abs(_array(estimate.scores[i, known])),
            _array(estimate.advantages[i, known]),
            _array(truth.decisive[i, known]).astype(bool),
            _array(studied.free[i, known]).astype(bool),
            _array(values),
            _array(steps),
        )


def _array(values: Tensor) -> Scores:
    found: Scores = values.double().cpu().numpy()
    return found
