"""The points of a metric that count: a run that was killed and resumed has logged some steps twice.

MLflow keeps both. Each resumption leaves a tag ``resumed.<time in ms>`` with the step it went on from; what was logged before
that time for later steps belongs to work that was thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

PREFIX = "resumed."


class Point(Protocol):
    """What an MLflow ``Metric`` has."""

    @property
    def step(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def value(self) -> float: ...


P = TypeVar("P", bound=Point)


class Resumption(NamedTuple):
    time: int
    """Milliseconds since 1970."""
    step: int
    """The last step that was kept; -1: none."""

    def tag(self) -> dict[str, str]:
        return {f"{PREFIX}{self.time}": str(self.step)}


def resumptions(tags: Mapping[str, str]) -> list[Resumption]:
    """The resumptions that a run's tags tell of, in order."""
    return sorted(Resumption(int(k.removeprefix(PREFIX)), int(v)) for k, v in tags.items() if k.startswith(PREFIX))


def current_points(points: Iterable[P], resumed: Sequence[Resumption]) -> list[P]:
    """Points by step and time, without the superseded ones and without exact repetitions."""
    kept: dict[tuple[int, int, str], P] = {}
    for point in points:
        if not any(point.timestamp < at.time and point.step > at.step for at in resumed):
            kept.setdefault((point.step, point.timestamp, repr(point.value)), point)  # repr: NaN is not equal to itself
    return sorted(kept.values(), key=lambda point: (point.step, point.timestamp))


def metric_history(client: Any, run_id: str, key: str, tags: Mapping[str, str] | None = None) -> list[Any]:
    """The points of a metric that count. `client`: an ``MlflowClient``; `tags`: the run's, where they are at hand already."""
    tags = client.get_run(run_id).data.tags if tags is None else tags
    return current_points(client.get_metric_history(run_id, key), resumptions(tags))
