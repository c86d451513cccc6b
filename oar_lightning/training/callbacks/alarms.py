"""Warnings about credit that looks wrong: once a run, and as tags of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import lightning as L
from annotated_types import Interval

from oar_lightning.common.ranges import Never, PositiveInt, RisingPair, checked
from oar_lightning.credit.scorers import Entropy, Position, Uniform
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.method import Method

log = logging.getLogger(__name__)


Threshold = Annotated[float, Interval(ge=0), "a threshold"]


@checked("alarms")
@dataclass(frozen=True)
class AlarmConfig:
    """Thresholds of the metrics ``credit/<name>``; None for no alarm. They are rules of thumb, not tests.

    Args:
        window: steps over which a metric is averaged before it is judged.
        ess_ratio: an average below it: few tokens have all the credit. Not where credit leaves tokens out of the loss.
        gini: above it: the same by another measure.
        uniform_frac: above it, where scores should tell tokens apart: what is trained is GRPO.
        mass_error: above it, for gates that keep the sum of a completion's weights.
        mass: an average outside these two, for weights whose sum is free: steps are larger or smaller than they seem.
        saturated_frac: above it: a bound decides, not the score.
        corr_position: a size above it: scores say little more than a token's place. Not of scorer=position.
        corr_entropy: a size above it: scores say little more than the entropy. Not of scorer=entropy.
        rank_stability: below it: scores are mostly noise of their estimate.
    """

    window: Annotated[PositiveInt, "a number of steps"] = 8
    ess_ratio: Threshold | Never = 0.2
    gini: Threshold | Never = 0.8
    uniform_frac: Threshold | Never = 0.95
    mass_error: Threshold | Never = 1e-6
    mass: RisingPair | Never = (0.5, 2.0)
    saturated_frac: Threshold | Never = 0.8
    corr_position: Threshold | Never = 0.7
    corr_entropy: Threshold | Never = 0.9
    rank_stability: Threshold | Never = 0.3


@dataclass(frozen=True)
class _Rule:
    """When a metric's average is wrong, what that means, and the methods that it is judged for."""

    wrong: Callable[[float, Any], bool]
    meaning: str
    applies: Callable[[Method], bool] = lambda method: True


RULES: dict[str, _Rule] = {
    "ess_ratio": _Rule(lambda x, t: x < t, "few tokens have all the credit", lambda method: not method.masks_loss),
    "gini": _Rule(lambda x, t: x > t, "few tokens have most of the credit", lambda method: not method.masks_loss),
    "uniform_frac": _Rule(
        lambda x, t: x > t,
        "scores tell no tokens apart, so that this trains as GRPO does",
        lambda method: not (method.masks_loss or method.gate.uniform or isinstance(method.scorer, Uniform)),
    ),
    "mass_error": _Rule(lambda x, t: x > t, "the sum of the weights is not kept", lambda method: method.gate.mass == "kept"),
    "mass": _Rule(
        lambda x, t: not t[0] <= x <= t[1],
        "weights make the steps larger or smaller than optimizer.lr says; try gate.preserve_mass=true",
        lambda method: method.gate.mass == "free",
    ),
    "saturated_frac": _Rule(lambda x, t: x > t, "a bound of the gate decides, not the score"),
    "corr_position": _Rule(
        lambda x, t: abs(x) > t,
        "scores say little more than a token's place",
        lambda method: not isinstance(method.scorer, Position),
    ),
    "corr_entropy": _Rule(
        lambda x, t: abs(x) > t,
        "scores say little more than scorer=entropy",
        lambda method: not isinstance(method.scorer, Entropy),
    ),
    "rank_stability": _Rule(lambda x, t: x < t, "scores are mostly noise; raise scorer.num_draws"),
}
"""Name of the metric and of its threshold -> rule."""
assert set(RULES) == {field.name for field in fields(AlarmConfig)} - {"window"}


class CreditAlarms(L.Callback):
    """Averages the credit's metrics over some steps, and warns once a run of each that is wrong: in the log, and as the tag
    ``alarm.<name>`` with the value and the step. A resumed run goes on with what it has seen."""

    def __init__(self, config: AlarmConfig, method: Method, tracker: Tracker) -> None:
        self.config = config
        self.method = method
        self.tracker = tracker
        self.raised: dict[str, str] = {}
        self._seen: dict[str, deque[float]] = {}

    def on_step_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        for name, rule in RULES.items():
            threshold, value = getattr(self.config, name), metrics.get(f"credit/{name}")
            if threshold is None or value is None or name in self.raised or not rule.applies(self.method):
                continue
            seen = self._seen.setdefault(name, deque(maxlen=self.config.window))
            seen.append(value)
            mean = sum(seen) / len(seen)
            if len(seen) == self.config.window and rule.wrong(mean, threshold):
                self._raise(name, f"{mean:.4g} at step {step}", rule.meaning)

    def _raise(self, name: str, found: str, meaning: str) -> None:
        self.raised[name] = found
        steps, threshold = self.config.window, getattr(self.config, name)
        log.warning("credit/%s is %s (mean of %d steps; alarms.%s=%s): %s", name, found, steps, name, threshold, meaning)
        self.tracker.describe({}, {f"alarm.{name}": found})

    def state_dict(self) -> dict[str, Any]:
        return {"raised": dict(self.raised), "seen": {name: list(values) for name, values in self._seen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.raised = dict(state["raised"])
        self._seen = {name: deque(values, maxlen=self.config.window) for name, values in state["seen"].items()}
