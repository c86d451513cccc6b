"""Statistics of means and paired differences of a few runs, with the same numbers at every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oar_lightning.common.bootstrap import bootstrap_bounds

DRAWS = 10_000
"""Resamples of a bootstrap."""

EXACT_UP_TO = 16
"""The largest number n of differences whose 2^n sign patterns are all evaluated; for more, SIGN_DRAWS patterns are drawn."""

SIGN_DRAWS = 100_000

BOOTSTRAP_FROM = 10
"""The fewest values whose interval is a bootstrap's. That of fewer is too narrow: of 3 it is their range, which covers 75 %."""


LEAST = 3
"""The fewest values that have an interval. That of two is many times as wide as what they differ by."""

_ROUNDING = 1e-9
"""Of a size: equal differences of floats differ in their last bits."""


@dataclass(frozen=True)
class Interval:
    """A mean of n values with its 95 % interval; low and high are NaN where there is none."""

    mean: float
    low: float
    high: float
    n: int

    def __format__(self, number: str) -> str:
        """`mean [low, high]`, of too few values `mean (n = 2)`, of equal ones `mean`; `number`: the form of each, as `+.1f`."""
        if not np.isnan(self.low):
            return f"{self.mean:{number}} [{self.low:{number}}, {self.high:{number}}]"
        return f"{self.mean:{number}}" + (f" (n = {self.n})" if self.n < LEAST else "")


def mean_interval(values: ArrayLike, bootstrap_from: float = BOOTSTRAP_FROM) -> Interval:
    """The mean with the interval of Student's t, from `bootstrap_from` values on with the percentile bootstrap's.

    Fewer than LEAST values have no interval, nor have equal ones: that a few runs agree does not say that all would.

    Raises:
        ValueError: without values.
    """
    array = np.asarray(values, dtype=float)
    if not array.size:
        raise ValueError("a mean needs at least one value")
    scatter = np.ptp(array) > _ROUNDING * np.abs(array).max()
    known = scatter and len(array) >= LEAST
    low, high = _bounds(array, len(array) >= bootstrap_from) if known else (np.nan, np.nan)
    return Interval(float(array.mean()), float(low), float(high), len(array))


def _bounds(array: NDArray[np.float64], bootstrap: bool) -> NDArray[np.float64]:
    if bootstrap:
        return bootstrap_bounds(array, DRAWS)
    from scipy.stats import sem, t  # takes 0.8 s

    return np.array(t.interval(0.95, len(array) - 1, loc=array.mean(), scale=sem(array)))


def students_half(error: float, n: int) -> float:
    """Half of a 95 % interval of Student's t, of n values whose mean has this standard error."""
    from scipy.stats import t  # takes 0.8 s

    return float(t.ppf(0.975, n - 1)) * error


def ratio_interval(values: ArrayLike, others: ArrayLike) -> Interval:
    """The ratio of the means of n pairs with its 95 % interval by Fieller's method: all r for which Student's t does not
    tell the mean of `values - r * others` from 0.

    NaN where the mean of `others` is 0. No interval where that is not bounded, as where the mean of `others` is not told
    from 0, nor, as a mean has none, of fewer than LEAST pairs or of equal ratios.
    """
    x, y = np.asarray(values, dtype=float), np.asarray(others, dtype=float)
    n, mean, by = len(x), float(np.mean(x)), float(np.mean(y))
    ratio = mean / by if by else np.nan
    if n < LEAST or np.ptp(x - ratio * y) <= _ROUNDING * np.abs(x).max():
        return Interval(ratio, np.nan, np.nan, n)
    (xx, xy), (_, yy) = students_half(1.0, n) ** 2 * np.cov(x, y) / n
    square, middle, rest = by**2 - yy, mean * by - xy, mean**2 - xx
    if square <= 0:
        return Interval(ratio, np.nan, np.nan, n)
    half = np.sqrt(max(middle**2 - square * rest, 0.0))
    return Interval(ratio, float((middle - half) / square), float((middle + half) / square), n)


def sign_flip_p(differences: ArrayLike) -> float:
    """Two-sided p-value of a mean difference of 0: the fraction of sign patterns whose |sum| reaches the observed one.

    Exact up to EXACT_UP_TO pairs; for more pairs the fraction among drawn patterns and the observed one.

    Raises:
        ValueError: without differences.
    """
    d = np.asarray(differences, dtype=float)
    if not d.size:
        raise ValueError("a paired test needs at least one pair")
    return sign_flip_ps(d[:, None])[0]


def sign_flip_ps(differences: NDArray[np.float64], drawn: int = SIGN_DRAWS) -> list[float]:
    """`sign_flip_p` of each column of differences [pairs, tests]; a pair has one sign in all tests, and so many are `drawn`."""
    pairs, tests = differences.shape
    if pairs == 1:
        return [1.0] * tests
    from scipy.stats import permutation_test  # takes 0.8 s

    size = np.abs(differences).sum(0)
    size[size == 0] = 1.0

    def distance(signed: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        # rounded: sums of the same numbers in another order differ in their last bits
        rounded: NDArray[np.float64] = np.round(np.abs(signed.sum(axis)) / size, 9)
        return rounded

    draws = 2**pairs if pairs <= EXACT_UP_TO else drawn
    options: dict[str, Any] = {"permutation_type": "samples", "alternative": "greater", "vectorized": True, "batch": 1000}
    rng = np.random.default_rng(pairs)
    found = permutation_test((differences,), distance, n_resamples=draws, axis=0, rng=rng, **options)
    return [float(p) for p in found.pvalue]


def smallest_p(pairs: int) -> float:
    """The smallest p-value that `sign_flip_p` can give, where all differences have the same sign: 2^(1-n)."""
    return float(2.0 ** (1 - pairs)) if pairs <= EXACT_UP_TO else 1 / (1 + SIGN_DRAWS)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple comparisons by the step-down method of Holm (1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    reached = 0.0
    for rank, place in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = reached
    return [float(p) for p in adjusted]


def pareto_front(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Indices of the points that no other point dominates, by rising cost. A point dominates another with a lower cost and at
    least its value, or with its cost and a higher value; of two alike neither does. Points with a NaN are left out."""
    points = [*zip(costs, values, strict=True)]
    front: list[int] = []
    known = (place for place, point in enumerate(points) if not np.isnan(point).any())
    for place in sorted(known, key=lambda i: (costs[i], -values[i])):
        if not front or values[place] > values[front[-1]] or points[place] == points[front[-1]]:
            front.append(place)
    return front
