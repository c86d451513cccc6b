"""Ends training where the evaluations no longer improve."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
from lightning.pytorch import callbacks

from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.training.callbacks.kept import check_compared, check_monitor


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's, which looks after each of this package's evaluations. The one before training does not count. A metric that
    is not finite ends training, too; Lightning's thresholds cannot be set.

    Args:
        monitor: ``eval/<evaluation set>/<metric>``. None: the sampled accuracy on the first evaluation set.
        patience: evaluations in a row without an improvement before training ends.
        min_delta: the smallest change that is an improvement.
        mode: whether more (`max`) or less (`min`) of it is better.
    """

    def __init__(
        self, monitor: str | None = None, patience: int = 3, min_delta: float = 0.0, mode: Literal["max", "min"] = "max"
    ) -> None:
        super().__init__(monitor or "", min_delta=min_delta, patience=patience, mode=mode, check_on_train_epoch_end=False)
        self.monitor: str = monitor or ""
        self._seen = -1

    def check(self, evaluation: EvaluationCallback) -> None:
        """Raises: ConfigError: for a metric that no evaluation logs, and where there is no evaluation to stop at."""
        check_compared("callbacks=early_stopping", evaluation.config.every_n_steps)
        self.monitor = check_monitor("callbacks.early_stopping.monitor", self.monitor or None, evaluation.metric_names())

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._seen = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        evaluation = next(callback for callback in trainer.callbacks if isinstance(callback, EvaluationCallback))
        step = trainer.global_step
        if step > self._seen and evaluation.history[-1]["step"] == step:
            self._seen = step
            self.on_validation_end(trainer, module)
