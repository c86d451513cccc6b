"""Progress of training: optimizer steps, what the current one does, the time left, the last step's metrics."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from oar_lightning.common.activity import describe_activity, in_words
from oar_lightning.common.progress import Bar, LinesByTime, joined, on_terminal

log = logging.getLogger(__name__)

WINDOW = 50
"""Steps whose mean duration is the pace. (They differ: only the first of a batch of rollouts samples.)"""


class TrainingProgress(ProgressBar):
    """A bar of optimizer steps on a terminal. Elsewhere log lines by time, one after the first step and one at the end.

    The time left counts the steps' own durations and those of the evaluations to come: `evaluation_seconds_left(step, last)`.
    """

    def __init__(self, evaluation_seconds_left: Callable[[int, int], float] = lambda step, last: 0.0) -> None:
        super().__init__()
        self._evaluation_seconds_left = evaluation_seconds_left
        self._durations: deque[float] = deque(maxlen=WINDOW)
        self._begun: float | None = None  # the start of the current training batch, of which a step may have several
        self._seconds = 0.0  # of the current step so far
        self._batches = 0
        self._step = self._first = self._total = 0
        self._metrics = ""
        self._lines: LinesByTime | None = None
        self._bar: Bar | None = None

    def disable(self) -> None:
        """Do nothing: Lightning calls this on ranks that show no progress anyway."""

    def enable(self) -> None:
        """Do nothing, as `disable` does."""

    def line(self) -> str:
        return joined(f"step {self._step}/{self._total}", self.words())

    def words(self) -> str:
        """What is done now, the time left and the metrics, as far as there are any."""
        return joined(self._activity(), self._left(), self._metrics)

    def _activity(self) -> str:
        if (now := describe_activity()) or self._begun is None:
            return now
        count = int(self.trainer.accumulate_grad_batches)
        return f"update {self._batches + 1}/{count}" if count > 1 else "update"

    def _left(self) -> str:
        steps = self._total - self._step
        if not self._durations or not steps:
            return ""
        pace = sum(self._durations) / len(self._durations)
        return f"{in_words(pace * steps + self._evaluation_seconds_left(self._step, self._total))} left"

    def _show(self, trainer: L.Trainer) -> None:
        """Take over the metrics of the step before, which Lightning has only now."""
        if self._bar is None and self._lines is None:
            return
        self._metrics = " ".join(f"{k} {float(v):.4g}" for k, v in trainer.progress_bar_metrics.items())

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.stop()
        self._bar = self._lines = None

    # -- Lightning's hooks -----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = self._first = trainer.global_step
        self._total = int(trainer.max_steps)
        if not trainer.is_global_zero:
            return
        if on_terminal():
            self._bar = Bar("step", self._total, self._step, self.words)
            self._bar.start()
        else:
            self._lines = LinesByTime(self.line)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self._begun = time.monotonic()
        if self._batches == 0 and self._step > self._first:
            self._show(trainer)
            if self._step == self._first + 1 and self._lines is not None:
                log.info("%s", joined(f"step {self._step}/{self._total}", self._left(), self._metrics))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        assert self._begun is not None, "the batch has begun"
        self._seconds += time.monotonic() - self._begun
        self._batches, self._begun = self._batches + 1, None
        if trainer.global_step > self._step:
            self._durations.append(self._seconds)
            self._step, self._batches, self._seconds = trainer.global_step, 0, 0.0
            if self._bar is not None:
                self._bar.update(self._bar.task, completed=self._step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._show(trainer)
        if self._lines is not None:
            log.info("%s", joined(f"step {self._step}/{self._total}", self._metrics))
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()
