"""Training that cannot come to anything ends with an error instead of running to its last step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import lightning as L

from oar_lightning.callbacks.evaluation import EvaluationCallback
from oar_lightning.sweep.trial import Diverged


@dataclass(frozen=True)
class DivergenceConfig:
    """When a run is given up.

    Args:
        collapse: the share of the sampled accuracy before training below which an evaluation counts as a collapse, in (0, 1];
            None for never. A loss that is not finite always ends a run.
    """

    collapse: float | None = None

    def __post_init__(self) -> None:
        if self.collapse is not None and not 0 < self.collapse <= 1:
            raise ValueError(
                f"divergence.collapse is a share of the accuracy before training and must be in (0, 1], or null for never, "
                f"got {self.collapse}"
            )


class Divergence(L.Callback):
    """Raises `Diverged` at a loss or weights that are not finite, and at a collapse of the first benchmark's accuracy."""

    def __init__(self, config: DivergenceConfig, evaluation: EvaluationCallback) -> None:
        self.config = config
        self.evaluation = evaluation

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any) -> None:
        if outputs and not math.isfinite(loss := float(outputs["loss"])):
            raise Diverged(f"the loss is {loss} at step {trainer.global_step}; lower optimizer.lr")
        # a broken policy may also say the same in all samples, which teach nothing and have no loss
        if not outputs and not all(bool(p.isfinite().all()) for p in module.parameters()):
            raise Diverged(f"weights are not finite at step {trainer.global_step}; lower optimizer.lr")
        if self.config.collapse is None or self.evaluation.history[-1]["step"] != trainer.global_step:
            return
        before, now = self.evaluation.accuracies()
        if now < self.config.collapse * before:
            raise Diverged(
                f"collapse: the sampled accuracy is {now:.3f} at step {trainer.global_step}, below divergence.collapse="
                f"{self.config.collapse} of {before:.3f} before training"
            )
