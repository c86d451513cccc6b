"""Means over completions and their paired differences, with intervals over problems."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oar_lightning.lab.types import Measure
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM, LEAST, Interval, holm, sign_flip_ps, students_half

DRAWS = 2_000
"""Resamples of a bootstrap."""

SIGN_DRAWS = 20_000
"""Sign patterns that are drawn."""


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

    Where fewer than BOOTSTRAP_FROM problems have a value it is Student's t with the ratio estimator's standard error, and NaN
    where fewer than LEAST have, or where those of all agree: that a few agree does not say that all would.
    """
    array = np.asarray(values, dtype=float)
    sums, counts = _by_problem(array, problem)
    if not counts.sum():
        return Interval(math.nan, math.nan, math.nan, 0)
    mean, problems = float(sums.sum() / counts.sum()), len(counts)
    residuals = sums - mean * counts
    scatter = np.abs(residuals).max() > 1e-9 * counts.max() * np.nanmax(np.abs(array))  # equal ones round apart
    if problems < LEAST or not scatter:
        low, high = math.nan, math.nan
    else:
        low, high = _bounds(sums, counts) if problems >= BOOTSTRAP_FROM else _few(mean, residuals, counts)
    return Interval(mean, low, high, int(counts.sum()))


def above_zero(values: Sequence[float], problem: Sequence[int]) -> bool:
    """Whether the mean of the values that are not NaN is above 0 by two standard errors over problems, of which there are two
    or more."""
    sums, counts = _by_problem(np.asarray(values, dtype=float), problem)
    if len(counts) < 2:
        return False
    mean = float(sums.sum() / counts.sum())
    return mean > 2 * _standard_error(sums - mean * counts, counts)


def differences(measures: Sequence[Measure], baseline: str, problem: Sequence[int]) -> list[Difference]:
    """Each estimator's paired difference to the baseline in each measure, positive where it is better; p-values are adjusted
    for all of them by Holm's method."""
    found, totals = [], []
    for measure in measures:
        sign = 1 if measure.better == "high" else -1
        for name, values in measure.values.items():
            if name == baseline:
                continue
            paired = sign * (np.asarray(values) - np.asarray(measure.values[baseline]))
            interval = mean_over(paired.tolist(), problem)
            found.append(Difference(measure.key, name, interval, math.nan))
            if interval.n:
                # a problem without the measure counts 0, which turning its sign does not change
                totals.append(np.bincount(_numbered(problem), np.nan_to_num(paired)))
    p_values = sign_flip_ps(np.stack(totals, 1), SIGN_DRAWS) if totals else []
    told = zip(p_values, holm(p_values), strict=True)
    return [with_p(d, *next(told)) if d.interval.n else d for d in found]


def with_p(difference: Difference, p: float, p_holm: float) -> Difference:
    return dataclasses.replace(difference, p=p, p_holm=p_holm)


def _by_problem(values: NDArray[np.float64], problem: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of each problem that has any."""
    known = ~np.isnan(values)
    numbers = _numbered(np.asarray(problem)[known])
    size = int(numbers.max(initial=-1)) + 1
    return np.bincount(numbers, values[known], size).astype(float), np.bincount(numbers, minlength=size).astype(float)


def _numbered(problem: ArrayLike) -> NDArray[np.intp]:
    """The problems' numbers, without gaps."""
    found: NDArray[np.intp] = np.unique(np.asarray(problem), return_inverse=True)[1]
    return found


def _few(mean: float, residuals: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    """A problem's residual is its sum minus what the mean would make of its number of values."""
    half = students_half(_standard_error(residuals, counts), len(residuals))
    return mean - half, mean + half


def _standard_error(residuals: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """The ratio estimator's."""
    n = len(residuals)
    return math.sqrt(n / (n - 1) * float(np.square(residuals).sum())) / float(counts.sum())


def _bounds(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    from scipy.stats import bootstrap  # takes 0.8 s

    def ratio(sums: Any, counts: Any, axis: int) -> Any:
        return sums.sum(axis) / counts.sum(axis)

    options: dict[str, Any] = {"n_resamples": DRAWS, "method": "percentile", "paired": True, "vectorized": True}
    found = bootstrap((sums, counts), ratio, rng=np.random.default_rng(len(sums)), **options).confidence_interval
    return float(found.low), float(found.high)
