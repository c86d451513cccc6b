"""Alarms: averaged over steps, once a run, for the gates that they are meant for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy
from torch import Tensor

from oar_lightning.credit.gates import BilevelGate, DirectGate, Gate, SelectGate, SignedGate
from oar_lightning.credit.scorers import Entropy, FunctionScorer, Position, Random, Scorer, Uniform
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import AlarmConfig, CreditAlarms
from oar_lightning.training.method import Method
from oar_lightning.types import Rollouts


class Tags(Tracker):
    """Keeps the tags that it is given."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}

    def describe(self, config: dict[str, Any], tags: dict[str, str]) -> None:
        self.tags.update(tags)


def watching(config: AlarmConfig, gate: Gate, scorer: Scorer | None = None) -> CreditAlarms:
    return CreditAlarms(config, Method(scorer or Random(), gate), Tags())


def test_an_average_over_steps_is_judged_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms = watching(AlarmConfig(window=3), BilevelGate())
    with caplog.at_level(logging.WARNING):
        for step, value in enumerate([0.0, 0.0, 0.9, 0.9, 0.0, 0.1, 0.1, 0.1, 0.1], 1):
            alarms.on_step_metrics(step, {"credit/ess_ratio": value, "credit/gini": 0.1})
    assert alarms.tracker.tags == {"alarm.ess_ratio": "0.06667 at step 7"}
    (told,) = caplog.messages
    assert told == (
        "credit/ess_ratio is 0.06667 at step 7 (mean of 3 steps; alarms.ess_ratio=0.2): few tokens have all the credit"
    )


def test_fewer_steps_than_the_window_say_nothing() -> None:
    alarms = watching(AlarmConfig(window=3), BilevelGate())
    for step in (1, 2):
        alarms.on_step_metrics(step, {"credit/ess_ratio": 0.0})
    alarms.on_step_metrics(3, {"reward": 1.0})  # a step in which nothing was scored
    assert not alarms.raised
    alarms.on_step_metrics(4, {"credit/ess_ratio": 0.0})
    assert set(alarms.raised) == {"ess_ratio"}


@pytest.mark.parametrize(
    ("name", "value", "gate", "raised"),
    [
        ("ess_ratio", 0.19, BilevelGate(), True),
        ("ess_ratio", 0.21, BilevelGate(), False),
        ("ess_ratio", 0.1, SelectGate(), False),  # by design
        ("gini", 0.81, DirectGate(), True),
        ("gini", 0.79, DirectGate(), False),
        ("gini", 0.9, SelectGate(), False),
        ("uniform_frac", 0.96, BilevelGate(), True),
        ("uniform_frac", 0.94, BilevelGate(), False),
        ("uniform_frac", 1.0, BilevelGate(mode="off"), False),  # as asked for
        ("mass_error", 2e-6, BilevelGate(), True),
        ("mass_error", 2e-7, BilevelGate(), False),
        ("mass_error", 0.3, BilevelGate(renormalize=False), False),
        ("mass_error", 2e-6, DirectGate(preserve_mass=True), True),
        ("mass", 0.4, DirectGate(), True),
        ("mass", 2.1, DirectGate(), True),
        ("mass", 1.9, DirectGate(), False),
        ("mass", 0.4, SignedGate(), False),
        ("mass", 0.4, BilevelGate(mode="suppress_only", renormalize=False), True),
        ("saturated_frac", 0.81, SignedGate(), True),
        ("saturated_frac", 0.79, DirectGate(), False),
        ("corr_position", -0.71, BilevelGate(), True),
        ("corr_position", 0.69, BilevelGate(), False),
        ("corr_entropy", 0.91, BilevelGate(), True),
        ("corr_entropy", 0.89, BilevelGate(), False),
        ("rank_stability", 0.29, BilevelGate(), True),
        ("rank_stability", 0.31, BilevelGate(), False),
    ],
)
def test_thresholds(name: str, value: float, gate: Gate, raised: bool) -> None:
    alarms = watching(AlarmConfig(window=1), gate)
    alarms.on_step_metrics(1, {f"credit/{name}": value})
    assert (name in alarms.raised) == raised
    off = watching(AlarmConfig(window=1, **{name: None}), gate)
    off.on_step_metrics(1, {f"credit/{name}": value})
    assert not off.raised


@pytest.mark.parametrize(("name", "scorer"), [("corr_position", Position()), ("corr_entropy", Entropy())])
def test_a_control_is_no_alarm_for_being_itself(name: str, scorer: Scorer) -> None:
    alarms = watching(AlarmConfig(window=1), BilevelGate(), scorer)
    alarms.on_step_metrics(1, {f"credit/{name}": 1.0})
    assert not alarms.raised


def test_grpo_itself_is_no_alarm_for_equal_weights() -> None:
    alarms = CreditAlarms(AlarmConfig(window=1), Method(Uniform(), BilevelGate()), Tags())
    alarms.on_step_metrics(1, {"credit/uniform_frac": 1.0})
    assert not alarms.raised


def test_scores_that_tell_no_tokens_apart_are_told_as_grpo(caplog: pytest.LogCaptureFixture) -> None:
    def nothing(model: Any, rollouts: Rollouts) -> Tensor:
        return torch.zeros(rollouts.token_ids.shape)

    module = make_module(tiny_policy(), FunctionScorer(nothing))
    alarms = CreditAlarms(AlarmConfig(window=2), module.method, Tags())
    module.step_log.listeners.append(alarms.on_step_metrics)
    with caplog.at_level(logging.WARNING):
        fit(module, 2, [alarms])
    assert alarms.raised == {"uniform_frac": "1 at step 2"}
    assert any("so that this trains as GRPO does" in message for message in caplog.messages)


def test_a_resumed_run_averages_over_the_window() -> None:
    alarms = watching(AlarmConfig(window=2), BilevelGate())
    alarms.load_state_dict({"raised": {}, "seen": {"gini": [0.1, 0.1]}})
    alarms.on_step_metrics(3, {"credit/gini": 0.99})
    assert not alarms.raised, "the mean of 0.1 and 0.99 is 0.545"
    alarms.on_step_metrics(4, {"credit/gini": 0.99})
    assert alarms.raised == {"gini": "0.99 at step 4"}


def test_in_a_run_and_after_its_resume() -> None:
    """Scores that are positions; a resumed run does not tell it again."""
    alarms = watching(AlarmConfig(window=2), BilevelGate())
    module = make_module(tiny_policy(), Position())
    module.step_log.listeners.append(alarms.on_step_metrics)
    fit(module, 2, [alarms])
    assert set(alarms.raised) == {"corr_position"}
    assert alarms.raised["corr_position"].endswith("at step 2")
    assert set(alarms.tracker.tags) == {"alarm.corr_position"}
    resumed = watching(AlarmConfig(window=2), BilevelGate())
    resumed.load_state_dict(alarms.state_dict())
    resumed.on_step_metrics(3, {"credit/corr_position": 1.0})
    assert not resumed.tracker.tags


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"window": 0}, r"alarms\.window .* got 0"),
        ({"gini": -0.1}, r"alarms\.gini is a threshold .* got -0\.1"),
        ({"mass": [2.0, 0.5]}, r"alarms\.mass must be \[low, high\] .* got \[2\.0, 0\.5\]"),
        ({"mass": [0.5]}, r"alarms\.mass .* got \[0\.5\]"),
    ],
)
def test_bad_thresholds_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlarmConfig(**knobs)
