"""Ends training that has diverged with an error, instead of running to its last step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import lightning as L
import torch

from oar_lightning.common.ranges import Never, NonNegativeInt, PositiveFraction, PositiveInt, checked
from oar_lightning.distributed.strategies import adapt
from oar_lightning.sweep.trial import Diverged
from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.training.publish import publish

log = logging.getLogger(__name__)


@checked("divergence")
@dataclass(frozen=True)
class DivergenceConfig:
    """When a run is given up.

    Args:
        collapse: the share of the sampled accuracy before training below which an evaluation counts as a collapse, in (0, 1];
            None for never.
        max_skipped_steps: how many steps with a gradient that is not finite are skipped before the run is given up.
        max_silent_steps: after how many batches of rollouts in a row that teach nothing (see `silence`) the run is given up;
            None for never.
    """

    collapse: Annotated[PositiveFraction, "a share of the accuracy before training"] | Never = None
    max_skipped_steps: Annotated[NonNegativeInt, "a number of steps"] = 3
    max_silent_steps: Annotated[PositiveInt, "a number of batches of rollouts"] | Never = 50


def silence(metrics: Mapping[str, float], entropy_teaches: bool = False) -> str | None:
    """Why a batch of rollouts teaches nothing, or nothing of the scorer, with what to look at; None where it does.

    `metrics`: those of the batch's first step, over all ranks. `entropy_teaches`: whether the loss has a term of the entropy,
    which moves the policy without advantages, too. (A KL term only moves it back.)
    """
    if metrics.get("credit/no_advantage_frac") == 1 and not entropy_teaches:
        return (
            "no token has an advantage, as where all completions of each problem have the same reward; look at the completions "
            "table, reward.weights, update.group_size, rollout.temperature and how hard the problems are"
        )
    if metrics.get("credit/invalid_frac") == 1:
        return (
            "every completion has a score that is not finite or not above -1, or negative ones only, so all weights are 1 and "
            "the scorer has no effect; importance is finite and >= 0: correct scorer"
        )
    return None


MOST_SCALED_DOWN = 24
"""Steps in a row that a loss scaler leaves out. It begins at 2^16 and halves: a scale this far down has no overflow to mend."""


class Divergence(L.Callback):
    """Skips optimizer steps whose gradient is not finite: the weights stay those of the step before.

    Raises `Diverged` after too many skipped or silent steps, when weights are not finite, and when the accuracy on the first
    evaluation set collapses.
    """

    def __init__(self, config: DivergenceConfig, evaluation: EvaluationCallback, entropy_teaches: bool = False) -> None:
        self.config = config
        self.evaluation = evaluation
        self.entropy_teaches = entropy_teaches
        self.skipped = 0
        self.silent = 0
        self.scaled_down = 0
        self._sees_gradients = False
        self._left_out_before = 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._left_out_before = adapt(trainer).skipped_steps() or 0

    def on_after_backward(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._sees_gradients = self._sees_gradients or any(p.grad is not None for p in module.parameters())

    def on_before_optimizer_step(self, trainer: L.Trainer, module: L.LightningModule, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if not gradients or adapt(trainer).judges_gradients:
            return
        finite = bool(torch.nn.utils.get_total_norm(gradients).isfinite())
        if adapt(trainer).scales_losses:  # the scaler skips such steps itself, by design, and lowers its scale
            self._judge_scaler(finite, trainer.global_step + 1)
            return
        if finite:
            return
        self._skip(trainer, trainer.global_step + 1)
        for p in module.parameters():
            p.grad = None

    def _judge_scaler(self, finite: bool, step: int) -> None:
        self.scaled_down = 0 if finite else self.scaled_down + 1
        if self.scaled_down >= MOST_SCALED_DOWN:
            raise Diverged(
                f"the gradient is not finite at step {step} and {MOST_SCALED_DOWN - 1} steps before it, whatever the scale of "
                "the loss; lower optimizer.lr, or use trainer.precision=bf16-mixed"
            )

    def _skip(self, trainer: L.Trainer, step: int) -> None:
        self.skipped += 1
        most = self.config.max_skipped_steps
        if self.skipped > most:
            raise Diverged(
                f"the gradient is not finite at step {step}, and more than divergence.max_skipped_steps={most} steps were so; "
                "lower optimizer.lr"
            )
        log.warning("step %d is left out: its gradient is not finite (%d of %d)", step, self.skipped, most)
        publish(trainer, {"update/skipped_steps": float(self.skipped)}, step)

    def on_step_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count batches of rollouts in a row that teach nothing. Further steps with the same batch have no reward."""
        if "reward" not in metrics:
            return
        reason, most = silence(metrics, self.entropy_teaches), self.config.max_silent_steps
        self.silent = self.silent + 1 if reason else 0
        if reason and self.silent == 1:
            log.warning("step %d teaches nothing: %s", step, reason)
        if reason and most is not None and self.silent >= most:
            raise Diverged(f"divergence.max_silent_steps={most} batches of rollouts in a row taught nothing: {reason}")

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any) -> None:
        left_out = adapt(trainer).skipped_steps()
        if left_out is not None and left_out > self._left_out_before:
            self._left_out_before = left_out
            self._skip(trainer, trainer.global_step)
        # where a strategy hides the gradients, only the loss can be checked
        if left_out is None and outputs and not self._sees_gradients and not math.isfinite(loss := float(outputs["loss"])):
            raise Diverged(f"the loss is {loss} at step {trainer.global_step}; lower optimizer.lr")
        # without a loss (no signal): a broken policy may say the same in all samples, so look at the weights
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

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "silent": self.silent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped = int(state["skipped"])
        self.silent = int(state.get("silent", 0))  # checkpoints of before have none
