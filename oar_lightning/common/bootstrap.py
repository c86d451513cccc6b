"""The bootstrap of means, which evaluations and reports share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BATCH = 500
"""Resamples held at once; bounds memory, does not change the numbers."""


def bootstrap_bounds(values: ArrayLike, draws: int, level: float = 0.95) -> NDArray[np.float64]:
    """Bounds [2 ...] of the percentile bootstrap of the mean over axis 0 of values [n ...]; the value itself where n is 1.

    The same numbers at every call: what is drawn depends on n alone.
    """
    from scipy.stats import bootstrap  # takes 0.8 s

    array = np.asarray(values, dtype=float)
    n = len(array)
    if n == 1:
        return np.stack([array[0], array[0]])
    rng = np.random.default_rng(n)
    options: dict[str, Any] = {"confidence_level": level, "n_resamples": draws, "method": "percentile", "batch": BATCH}
    interval = bootstrap((array,), np.mean, axis=0, rng=rng, **options).confidence_interval
    return np.stack([interval.low, interval.high])
