"""Median pruning, as a trial takes part in it."""

from __future__ import annotations

from typing import Any

import lightning as L

from oar_lightning.sweep.pruning import MedianJudge
from oar_lightning.sweep.trial import Pruned, Ticket
from oar_lightning.training.callbacks.evaluation import EvaluationCallback


class MedianPruning(L.Callback):
    """Reports the accuracy of each evaluation to the study, and raises `Pruned` where it is below the median."""

    def __init__(self, ticket: Ticket, evaluation: EvaluationCallback) -> None:
        self.evaluation = evaluation
        self._judge = MedianJudge(ticket)
        self._reported = 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._reported = trainer.global_step  # a resumed trial was judged there

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        due = step > self._reported and self.evaluation.history[-1]["step"] == step
        if not due or step == trainer.max_steps:  # a trial at its last step is complete, not pruned
            return
        self._reported = step
        value = self.evaluation.accuracies()[1]
        hopeless = self._judge.is_hopeless(step, value) if trainer.is_global_zero else False
        if trainer.strategy.broadcast(hopeless):
            raise Pruned(f"pruned: the accuracy {value:.3f} at step {step} is worse than the median of the earlier trials")
