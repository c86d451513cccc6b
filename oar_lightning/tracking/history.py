"""Reads a metric's history from MLflow without superseded points.

A run that was killed and resumed has logged some steps twice, and MLflow keeps both. Each resumption sets a tag
``resumed.<time in ms>`` to the step from which it continued: points of later steps that were logged before that time are
superseded. Of ``system/`` metrics none are: their steps count samples, and begin again at 0 with each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from oar_lightning.tracking.renamed import former_names

PREFIX = "resumed."

OF_THE_MACHINE = "system/"
"""What the names of metrics begin with whose step is no optimizer step."""

FORKED_AT = "resumed_from_step"
"""The tag of a run that began with another one's state: the step of that state."""


class Point(Protocol):
    """The fields of an MLflow ``Metric`` that are read here."""

    @property
    def step(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def value(self) -> float: ...


P = TypeVar("P", bound=Point)


class Resumption(NamedTuple):
    """A time at which a run was resumed, and the step from which it continued."""

    time: int
    """Milliseconds since 1970."""
    step: int
    """The last step that was kept; -1: none."""

    def tag(self) -> dict[str, str]:
        """The MLflow tag that records the resumption."""
        return {f"{PREFIX}{self.time}": str(self.step)}


def resumptions(tags: Mapping[str, str]) -> list[Resumption]:
    """The resumptions in a run's tags, by time."""
    return sorted(Resumption(int(k.removeprefix(PREFIX)), int(v)) for k, v in tags.items() if k.startswith(PREFIX))


def current_points(points: Iterable[P], resumed: Sequence[Resumption]) -> list[P]:
    """The points sorted by step and time, without superseded points and exact repetitions."""
    kept: dict[tuple[int, int, str], P] = {}
    for point in points:
        if not any(point.timestamp < at.time and point.step > at.step for at in resumed):
            kept.setdefault((point.step, point.timestamp, repr(point.value)), point)  # repr: NaN is not equal to itself
    return sorted(kept.values(), key=lambda point: (point.step, point.timestamp))


def metric_history(client: Any, run_id: str, key: str, tags: Mapping[str, str] | None = None) -> list[Any]:
    """The current points of a metric, under former names too. `client`: an ``MlflowClient``; `tags`: the run's tags, read
    where they are None."""
    tags = client.get_run(run_id).data.tags if tags is None else tags
    points = [point for name in (key, *former_names(key)) for point in client.get_metric_history(run_id, name)]
    return current_points(points, [] if key.startswith(OF_THE_MACHINE) else resumptions(tags))
