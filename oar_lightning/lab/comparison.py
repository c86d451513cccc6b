"""Means over completions and their paired differences, with intervals by bootstrap over problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oar_lightning.lab.types import Measure
from oar_lightning.reporting.statistics import Interval, holm, sign_flip_p

DRAWS = 2_000
"""Resamples of a bootstrap."""


@dataclass(frozen=True)
class Difference:
    """How much better an estimator is than the baseline in one measure, on the completions where both have it.

    `p` is that of a mean difference of 0, by sign flips of whole problems; `p_holm` is adjusted for all differences of a
    table.
    """

    measure: str
    estimator: str
    interval: Interval
    p: float
    p_holm: float = math.nan


def mean_over(values: Sequence[float], problem: Sequence[int]) -> Interval:
    """The mean of the values that are not NaN, with a 95 % interval from problems drawn with replacement. `n` counts values.

    The interval is NaN where fewer than two problems have a value.
    """
    array = np.asarray(values, dtype=float)
    sums, counts = _by_problem(array, problem)
    if not counts.sum():
        return Interval(math.nan, math.nan, math.nan, 0)
    low, high = _bounds(sums, counts) if len(counts) > 1 else (math.nan, math.nan)
    return Interval(float(sums.sum() / counts.sum()), low, high, int(counts.sum()))


def differences(measure: Measure, baseline: str, problem: Sequence[int]) -> list[Difference]:
    """Each estimator's paired difference to the baseline; positive where it is better."""
    sign = 1 if measure.better == "high" else -1
    reference = np.asarray(measure.values[baseline])
    found = []
    for name, values in measure.values.items():
        if name == baseline:
            continue
        paired = sign * (np.asarray(values) - reference)
        sums, _ = _by_problem(paired, problem)
        p = sign_flip_p(sums) if len(sums) else math.nan
        found.append(Difference(measure.key, name, mean_over(paired.tolist(), problem), p))
    return found


def adjusted(found: Sequence[Difference]) -> list[Difference]:
    """The differences with their p-values adjusted for one another by Holm's method."""
    tested = [d for d in found if not math.isnan(d.p)]
    values = dict(zip(((d.measure, d.estimator) for d in tested), holm([d.p for d in tested]), strict=True))
    return [Difference(d.measure, d.estimator, d.interval, d.p, values.get((d.measure, d.estimator), math.nan)) for d in found]


def _by_problem(values: NDArray[np.float64], problem: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of each problem that has any."""
    known = ~np.isnan(values)
    numbers = np.unique(np.asarray(problem)[known], return_inverse=True)[1]
    size = int(numbers.max(initial=-1)) + 1
    return np.bincount(numbers, values[known], size).astype(float), np.bincount(numbers, minlength=size).astype(float)


def _bounds(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    from scipy.stats import bootstrap  # takes 0.8 s

    def ratio(sums: Any, counts: Any, axis: int) -> Any:
        return sums.sum(axis) / counts.sum(axis)

    options: dict[str, Any] = {"n_resamples": DRAWS, "method": "percentile", "paired": True, "vectorized": True}
    found = bootstrap((sums, counts), ratio, rng=np.random.default_rng(len(sums)), **options).confidence_interval
    return float(found.low), float(found.high)
