"""The mean curve of several runs with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oar_lightning.common.bootstrap import bootstrap_bounds
from oar_lightning.reporting.runs import Curve, Curves, RunRecord
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM

POINTS = 400
"""The most steps of a band."""

DRAWS = 2000

LAST_TENTH = "last_tenth/"
"""Before a metric's name: its mean over the last tenth of training."""


@dataclass(frozen=True)
class Band:
    """The mean of n curves and, at each step, their range; from BOOTSTRAP_FROM curves on the mean's 95 % bootstrap interval."""

    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int


def band(curves: Sequence[Curve]) -> Band | None:
    """The band over the steps that all curves span; None where there are no such steps.

    Curves are interpolated linearly: a run may lack a value at a step (no completion had a signal), and without interpolation
    the mean would be over other runs there than at the step before.
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
    few = len(curves) < BOOTSTRAP_FROM
    low, high = (values.min(0), values.max(0)) if few else bootstrap_bounds(values, DRAWS)
    return Band(steps, mean, low, high, len(curves))


def smoothed(curve: Curve, fraction: float = 0.05) -> Curve:
    """The running mean over a window of this fraction of the points, which is cut at both ends. A curve of few points does
    not change."""
    half = int(fraction * len(curve.values) / 2)
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    places = np.arange(len(curve.values))
    start, stop = np.maximum(places - half, 0), np.minimum(places + half + 1, len(curve.values))
    return Curve(curve.steps, (sums[stop] - sums[start]) / (stop - start))


def final_value(curve: Curve, fraction: float = 0.1) -> float:
    """The mean of the last tenth of the points, at least one: the value of a single batch is noisy."""
    return float(curve.values[-max(1, round(fraction * len(curve.values))) :].mean())


def last_tenth(run: RunRecord, curves: Curves, metric: str) -> float | None:
    """A metric's mean over the last tenth of training, as kept or from its curve; None where it was not recorded."""
    kept = run.metrics.get(LAST_TENTH + metric)  # in full precision, which kept curves are not
    if kept is None and run.run_id in curves.get(metric, {}):
        return final_value(curves[metric][run.run_id])
    return kept


END_COLUMNS = {
    "grad_norm": "grad_norm",
    "ess_ratio": "credit/ess_ratio",
    "mean_length": "completions/mean_length",
    "forward_equivalents": "credit/forward_equivalents",
}
"""Column of a study's own table of runs -> metric whose mean over the last tenth of training it holds."""


def ends_of(run: RunRecord, curves: Curves) -> dict[str, float]:
    """Column of END_COLUMNS -> its value, of those that the run recorded."""
    found = {column: last_tenth(run, curves, metric) for column, metric in END_COLUMNS.items()}
    return {column: end for column, end in found.items() if end is not None}
