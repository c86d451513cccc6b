"""Wilson's interval of a proportion, which evaluations and the credit lab share."""

from __future__ import annotations

import math

Z = 1.959964
"""Of an interval of 95 %."""


def wilson(share: float, n: float) -> tuple[float, float]:
    """Middle and half of the width of Wilson's 95 % interval for `share` in [0, 1] of n draws.

    Unlike the bootstrap's, it is wider than a point where all draws agree: 8 of 8 is [0.68, 1].
    """
    middle = (n * share + Z**2 / 2) / (n + Z**2)
    return middle, Z / (n + Z**2) * math.sqrt(n * share * (1 - share) + Z**2 / 4)


def wilson_bounds(share: float, n: float) -> tuple[float, float]:
    """The interval's ends, within [0, 1] to the last digit."""
    middle, half = wilson(share, n)
    return max(0.0, middle - half) if share > 0 else 0.0, min(1.0, middle + half) if share < 1 else 1.0
