"""Shares of a number of things."""

from __future__ import annotations

import math


def count_of(share: float, number: int) -> int:
    """ceil(share * number), the least number of things that is such a share: 7 for 0.07 of 100, which floats make
    7.000000000000001."""
    return math.ceil(share * number - 1e-9)
