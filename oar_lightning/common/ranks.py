"""Ranks of values, and how far two rankings agree."""

from __future__ import annotations

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

Values = Float[Tensor, " n"] | Float[ndarray, " n"]


def mid_ranks(values: Values) -> Float[Tensor, " n"]:
    """Ranks from 1 on; equal values share the mean of theirs. By sorting, since pairs of many values would not fit into
    memory."""
    given = torch.as_tensor(values).double()
    ordered = given.sort().values
    below, until = (torch.searchsorted(ordered, given, right=right) for right in (False, True))
    return (below + until + 1).double() / 2


def rank_correlation(a: Values, b: Values) -> float:
    """Spearman's correlation, by mid-ranks; 0 where the values of either are all the same."""
    ranks = [mid_ranks(values) for values in (a, b)]
    centred = [r - r.mean() for r in ranks]
    norm = float(centred[0].norm() * centred[1].norm())
    return max(-1.0, min(1.0, float(centred[0] @ centred[1]) / norm)) if norm else 0.0  # rounding may pass 1
