"""The search for the deviation that turned a completion's outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from oar_lightning.credit.scorers.turning_point.deviations import Deviation


@dataclass(frozen=True)
class Search:
    """The deviations of a completion in order, and `sums` of the weights of the deviations before each and of all.

    The turning point is one of those from `low` on and before `high`.
    """

    deviations: tuple[Deviation, ...]
    sums: tuple[float, ...]
    low: int
    high: int
    rounds: int = 0

    @classmethod
    def over(cls, deviations: Sequence[Deviation], weights: Sequence[float]) -> Search:
        """All deviations of a completion, at least one, with weights > 0."""
        return cls(tuple(deviations), tuple(accumulate(weights, initial=0.0)), 0, len(deviations))

    @property
    def is_open(self) -> bool:
        return self.high - self.low > 1

    def middles(self, points: int) -> list[int]:
        """The deviations, at most so many, that divide those that are left into parts of about equal weight, in order."""
        start, end = self.sums[self.low], self.sums[self.high]
        marks = [start + (end - start) * i / (points + 1) for i in range(1, points + 1)]
        inner = range(self.low + 1, self.high)
        return sorted({min(inner, key=lambda i: abs(self.sums[i] - mark)) for mark in marks})

    def narrowed(self, middles: Sequence[int], turned: Sequence[bool]) -> Search:
        """After the continuations of the prefixes before these deviations, which came to the completion's own reward or not:
        what lies after the last that did not."""
        ends = [self.low, *middles, self.high]
        last = max((i for i, came in enumerate(turned, 1) if not came), default=0)
        return dataclasses.replace(self, low=ends[last], high=ends[last + 1], rounds=self.rounds + 1)

    def at_the_likeliest(self) -> Search:
        """Ended without continuations, at the deviation of the largest weight, the first of equal ones."""
        place = max(range(self.low, self.high), key=lambda i: self.sums[i + 1] - self.sums[i])
        return dataclasses.replace(self, low=place, high=place + 1)

    @property
    def turning_point(self) -> Deviation:
        """The deviation with the largest gap among those that are left."""
        return max(self.deviations[self.low : self.high], key=lambda deviation: deviation.gap)
