"""The search for the deviation that turned a completion's outcome."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from oar_lightning.credit.scorers.turning_point.deviations import Deviation
from oar_lightning.distributed.ranks import all_gather

PRIOR = 2
"""Made-up deviations of the mean rate, which a token's own are added to."""


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

    @property
    def turning_point(self) -> Deviation:
        """The deviation with the largest gap among those that are left."""
        return max(self.deviations[self.low : self.high], key=lambda deviation: deviation.gap)


@dataclass(frozen=True)
class TurnCounts:
    """Of each token that was the most probable one: how many searched completions deviated from it, and turned there."""

    deviated: Counter[int] = field(default_factory=Counter)
    turned: Counter[int] = field(default_factory=Counter)

    def weights(self, deviations: Sequence[Deviation]) -> list[float]:
        """How likely each deviation of a completion is its turning point, up to a factor: its token's share of deviations that
        turned, times its gap and the mean gap. Where nothing is known of tokens, or gaps are alike, the other counts alone."""
        mean_gap = sum(deviation.gap for deviation in deviations) / len(deviations)
        seen, turned = self.deviated.total(), self.turned.total()
        mean = turned / seen if turned else 1.0

        def rate(token: int) -> float:
            return (self.turned[token] + PRIOR * mean) / (self.deviated[token] + PRIOR)

        return [rate(deviation.likely) * (deviation.gap + mean_gap) for deviation in deviations]

    @classmethod
    def of(cls, searches: Iterable[Search]) -> TurnCounts:
        """Those of searches that came to their end."""
        ended = [search for search in searches if not search.is_open]
        deviated = Counter(deviation.likely for search in ended for deviation in search.deviations)
        return cls(deviated, Counter(search.turning_point.likely for search in ended))

    def of_all_ranks(self) -> TurnCounts:
        """The sum of the ranks' counts. All ranks have to call it."""
        return sum(all_gather(self), TurnCounts())

    def __add__(self, other: TurnCounts) -> TurnCounts:
        return TurnCounts(self.deviated + other.deviated, self.turned + other.turned)

    def state_dict(self) -> dict[str, Any]:
        return {"deviated": dict(self.deviated), "turned": dict(self.turned)} if self.deviated else {}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> TurnCounts:
        return cls(Counter(state.get("deviated", {})), Counter(state.get("turned", {})))
