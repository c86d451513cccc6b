"""What the console shows of a training: steps, what they do, the time left."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from oar_lightning.common.activity import activity
from oar_lightning.training.callbacks import progress
from oar_lightning.training.callbacks.progress import TrainingProgress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(progress, "time", own)
    monkeypatch.setattr(progress, "on_terminal", lambda: False)
    return own


class Training:
    """Calls the hooks as Lightning does: a step of `batches` micro-batches, with what a step takes."""

    def __init__(self, clock: Clock, steps: int, batches: int = 1) -> None:
        self.clock, self.batches = clock, batches
        self.trainer: Any = SimpleNamespace(
            global_step=0, max_steps=steps, is_global_zero=True, progress_bar_metrics={}, accumulate_grad_batches=batches
        )
        self.callback = TrainingProgress(lambda step, last: 100.0)
        self.callback.setup(self.trainer, None, "fit")  # type: ignore[arg-type]
        self.callback.on_train_start(self.trainer, None)  # type: ignore[arg-type]

    def step(self, seconds: float, between: float = 0.0) -> list[str]:
        """The lines at the begin of each micro-batch."""
        lines = []
        for batch in range(self.batches):
            self.callback.on_train_batch_start(self.trainer, None, None, batch)  # type: ignore[arg-type]
            lines.append(self.callback.line())
            self.clock.now += seconds / self.batches
            self.trainer.global_step += batch == self.batches - 1
            self.callback.on_train_batch_end(self.trainer, None)  # type: ignore[arg-type]
        self.trainer.progress_bar_metrics = {"reward": 0.1 * self.trainer.global_step}  # the step log comes later
        self.clock.now += between
        return lines

    def end(self) -> None:
        self.callback.on_train_end(self.trainer, None)  # type: ignore[arg-type]


def test_the_time_left_is_that_of_steps_and_evaluations_to_come(clock: Clock) -> None:
    training = Training(clock, 10)
    clock.now += 1000  # the opening evaluation
    assert training.callback.line() == "step 0/10"
    assert training.step(4.0, between=500.0) == ["step 0/10 · update"]  # an evaluation within
    assert training.callback.line() == "step 1/10 · 2 min 16 s left"
    assert training.step(8.0) == ["step 1/10 · update · 2 min 16 s left · reward 0.1"]
    assert training.step(1.0) == ["step 2/10 · update · 2 min 28 s left · reward 0.2"]
    training.end()


def test_lines_tell_optimizer_steps_and_the_work_within(clock: Clock) -> None:
    training = Training(clock, 2, batches=3)
    assert training.step(3.0) == [f"step 0/2 · update {i}/3" for i in (1, 2, 3)]
    with activity("rollout", 256):
        assert training.step(3.0)[0] == "step 1/2 · rollout 0/256 · 1 min 43 s left · reward 0.1"
    assert training.callback.line() == "step 2/2 · reward 0.1"
    training.end()


def test_the_first_and_the_last_step_have_a_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        training = Training(clock, 3)
        for _ in range(3):
            training.step(1.0)
        training.end()
    assert caplog.messages == ["step 1/3 · 1 min 42 s left · reward 0.1", "step 3/3 · reward 0.3"]


def test_other_ranks_are_silent(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(clock, 2)
    training.callback.on_exception(training.trainer, None, KeyError())  # type: ignore[arg-type]
    training.trainer.is_global_zero = False
    training.callback.on_train_start(training.trainer, None)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        training.step(1.0)
        training.step(1.0)
        training.end()
    assert caplog.messages == []
