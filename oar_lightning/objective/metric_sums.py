"""Metrics as (sum, count), so that those of micro-batches and ranks can be added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Sums = Mapping[str, tuple[float, float]]
"""Name -> (sum, count)."""

Fold = Callable[[float, float], float]
"""A function that combines two values: `min`, `max` or `operator.add`."""


class MetricSums:
    """Accumulates metrics: means as name -> (sum, count), totals and extremes as name -> (fold, value)."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._folded: dict[str, tuple[Fold, float]] = {}

    def add(self, metrics: Sums) -> None:
        """Add sums and counts to those stored under the same names."""
        for name, (total, count) in metrics.items():
            old_total, old_count = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (old_total + total, old_count + count)

    def add_means(self, means: Mapping[str, float], count: float) -> None:
        """Add means, each taken over `count` values."""
        self.add({name: (mean * count, count) for name, mean in means.items()})

    def fold(self, fold: Fold, values: Mapping[str, float]) -> None:
        """Combine each value with the one stored under its name by `fold`."""
        for name, value in values.items():
            if name in self._folded:
                value = fold(self._folded[name][1], value)
            self._folded[name] = fold, value

    def merge(self, others: Iterable[MetricSums]) -> MetricSums:
        """Add the metrics of others, such as those of other ranks."""
        for other in others:
            self.add(other._sums)
            for name, (fold, value) in other._folded.items():
                self.fold(fold, {name: value})
        return self

    def means(self) -> dict[str, float]:
        """Sum / count of each mean, and the totals and extremes; a mean with count 0 is left out."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        return means | {name: value for name, (_, value) in self._folded.items()}
