"""Ranks of values, and how far two rankings agree."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray


def mid_ranks(values: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    mean: Float[ndarray, " n"] = (np.cumsum(count) - (count - 1) / 2)[index]
    return mean


def rank_correlation(a: Float[ndarray, " n"], b: Float[ndarray, " n"]) -> float:
    """Spearman's correlation, by mid-ranks; 0 where the values of either are all the same."""
    if not len(a) or (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    return float(np.corrcoef(mid_ranks(a), mid_ranks(b))[0, 1])
