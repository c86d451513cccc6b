"""Numbers of tokens -> shades of the heat-map: robust scales, so that one outlier does not wash out all other tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 5
"""Shades on each side of the centre."""

SHADES = "abcdefghijk"
"""From far below the centre (a) to far above it (k); the middle one is the centre."""

BELOW, ABOVE, NOT_FINITE = "<", ">", "?"
"""What lies beyond the scale, and what is no number."""

PERCENTILE = 0.98
BEYOND = 3.0
"""Only what is so many times as far from the centre as the percentile lies beyond the scale."""


@dataclass(frozen=True)
class Scale:
    """Values between `low` and `high`, which take the last shades on either side of `center`."""

    center: float
    low: float
    high: float

    def shade(self, value: float) -> str:
        """One of `SHADES`, or `BELOW`, `ABOVE`, `NOT_FINITE`."""
        if not math.isfinite(value):
            return NOT_FINITE
        if value > self.high:
            return ABOVE
        if value < self.low:
            return BELOW
        end = self.high if value > self.center else self.low
        distance = 0.0 if end == self.center else (value - self.center) / abs(end - self.center)
        return SHADES[STEPS + round(STEPS * distance)]

    def levels(self) -> list[tuple[str, float]]:
        """Each shade in use and its value, upwards: both sides, or one where nothing lies on the other."""
        down = [] if self.low == self.center else range(-STEPS, 0)
        up = [] if self.high == self.center else range(1, STEPS + 1)
        ends = [(i, self.center - self.low) for i in down] + [(0, 0.0)] + [(i, self.high - self.center) for i in up]
        return [(SHADES[STEPS + i], self.center + i / STEPS * reach) for i, reach in ends]


def make_scale(values: Sequence[float], center: float = 0.0, even: bool = True) -> Scale:
    """The scale of these values: sequential where none lies below `center`, else diverging.

    An end is the largest distance from the centre, or its 98th percentile where the largest is more than three times that.
    Values at the centre do not count. `even`: a diverging scale reaches as far on both sides. Equal values take the centre.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or min(finite) == max(finite):
        value = finite[0] if finite else center
        return Scale(value, value, value)
    above, below = [v - center for v in finite if v > center], [center - v for v in finite if v < center]
    if above and below and even:
        reach = robust_end(above + below)
        return Scale(center, center - reach, center + reach)
    return Scale(center, center - robust_end(below), center + robust_end(above))


def robust_end(distances: Sequence[float]) -> float:
    """The largest of positive distances, or the 98th percentile where the largest is far beyond it; 0 for none.

    Of fewer than three none is an outlier.
    """
    ordered = sorted(distances)
    if len(ordered) < 3:
        return ordered[-1] if ordered else 0.0
    percentile = ordered[int(PERCENTILE * (len(ordered) - 1))]
    return ordered[-1] if ordered[-1] <= BEYOND * percentile else percentile
