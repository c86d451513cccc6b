"""Metrics as (sum, count), so that micro-batches and ranks add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Sums = Mapping[str, tuple[float, float]]


Fold = Callable[[float, float], float]


class MetricSums:
    """Metrics under construction: means as name -> (sum, count), totals and extremes as name -> (how, value)."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._folded: dict[str, tuple[Fold, float]] = {}

    def add(self, metrics: Sums) -> None:
        for name, (total, count) in metrics.items():
            old_total, old_count = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (old_total + total, old_count + count)

    def add_means(self, means: Mapping[str, float], count: float) -> None:
        """Add means that were taken over `count` things each."""
        self.add({name: (mean * count, count) for name, mean in means.items()})

    def fold(self, how: Fold, values: Mapping[str, float]) -> None:
        """Add values of which `how` (`min`, `max`, `operator.add`) makes one."""
        for name, value in values.items():
            self._folded[name] = how, how(self._folded[name][1], value) if name in self._folded else value

    def merge(self, others: Iterable[MetricSums]) -> MetricSums:
        """Add what others have, such as those of other ranks."""
        for other in others:
            self.add(other._sums)
            for name, (how, value) in other._folded.items():
                self.fold(how, {name: value})
        return self

    def means(self) -> dict[str, float]:
        """Sum / count of everything added, totals and extremes; names never counted are left out."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        return means | {name: value for name, (_, value) in self._folded.items()}
