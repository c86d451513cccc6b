"""Curves of several runs as one mean with a band; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.statistics import bootstrap_bounds

POINTS = 400
"""Steps of a band at most."""

DRAWS = 2000


@dataclass(frozen=True)
class Band:
    """Mean of n curves and its 95 % bootstrap interval at each step; low and high are the mean where n is 1."""

    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int


def band(curves: Sequence[Curve]) -> Band | None:
    """The band over the steps that all curves span, each read linearly between its points; None where there are none.

    A step without a value (no completion had a signal) would otherwise leave the mean to other runs than the step before.
    """
    if not curves:
        return None
    first, last = max(c.steps[0] for c in curves), min(c.steps[-1] for c in curves)
    steps = np.unique(np.concatenate([c.steps for c in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    if not len(steps):
        return None
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))]
    values = np.stack([np.interp(steps, c.steps, c.values) for c in curves])
    mean = values.mean(0)
    low, high = bootstrap_bounds(values, draws=DRAWS) if len(curves) > 1 else (mean, mean)
    return Band(steps, mean, low, high, len(curves))


def smoothed(curve: Curve, share: float = 0.05) -> Curve:
    """The running mean over a window of that share of the points, the window cut at both ends; a curve of few points stays."""
    half = int(share * len(curve.values) / 2)
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    places = np.arange(len(curve.values))
    start, stop = np.maximum(places - half, 0), np.minimum(places + half + 1, len(curve.values))
    return Curve(curve.steps, (sums[stop] - sums[start]) / (stop - start))


def at_the_end(curve: Curve, share: float = 0.1) -> float:
    """The mean of the last tenth of the points, at least one: one batch's value alone is noise."""
    return float(curve.values[-max(1, round(share * len(curve.values))) :].mean())
