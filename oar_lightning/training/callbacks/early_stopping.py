"""Ends training where the evaluations no longer improve."""

from __future__ import annotations

import logging
from typing import Any, Literal

import lightning as L
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from oar_lightning.common.ranges import NonNegativeFloat, PositiveInt, checked
from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.training.callbacks.kept import check_compared, check_monitor

log = logging.getLogger(__name__)


@checked("callbacks.early_stopping")
class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's, which looks after each of this package's evaluations. The one before training does not count. A metric that
    is not finite ends training, too; Lightning's thresholds cannot be set. A run that it has ended is at its end when it is
    resumed, too, unless with more patience.

    Args:
        monitor: ``eval/<evaluation set>/<metric>``. None: the sampled accuracy on the first evaluation set.
        patience: evaluations in a row without an improvement before training ends.
        min_delta: the smallest change that is an improvement.
        mode: whether more (`max`) or less (`min`) of it is better.
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: PositiveInt = 3,
        min_delta: NonNegativeFloat = 0.0,
        mode: Literal["max", "min"] = "max",
    ) -> None:
        super().__init__(monitor or "", min_delta=min_delta, patience=patience, mode=mode, check_on_train_epoch_end=False)
        self.monitor: str = monitor or ""
        self.patience: int = patience
        self._seen = -1

    def check(self, evaluation: EvaluationCallback) -> None:
        """Raises: ConfigError: for a metric that no evaluation logs, and where there is no evaluation to stop at."""
        check_compared("callbacks=early_stopping", evaluation.config.every_n_steps)
        self.monitor = check_monitor("callbacks.early_stopping.monitor", self.monitor or None, evaluation.metric_names())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # with the checkpoint's patience Lightning would go on whatever the config says now
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._seen = trainer.global_step
        if self.wait_count >= max(1, self.patience):  # 0 is of a run that has not begun
            remedy = f"callbacks.early_stopping.patience={self.wait_count + 1} or more goes on"
            self._end(trainer, f"has not improved in {self.wait_count} evaluations", remedy)
        elif self.stopping_reason == EarlyStoppingReason.NON_FINITE_METRIC:
            self._end(trainer, "was not finite", "go on from an earlier checkpoint by ckpt_path, or without this callback")

    def _end(self, trainer: L.Trainer, why: str, remedy: str) -> None:
        log.warning(
            "callbacks=early_stopping: %s %s, so training has ended at step %d; %s",
            self.monitor,
            why,
            trainer.global_step,
            remedy,
        )
        trainer.should_stop = True

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        evaluation = next(callback for callback in trainer.callbacks if isinstance(callback, EvaluationCallback))
        step = trainer.global_step
        if step > self._seen and evaluation.history[-1]["step"] == step:
            self._seen = step
            self.on_validation_end(trainer, module)
