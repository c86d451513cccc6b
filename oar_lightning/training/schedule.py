"""Learning-rate schedules."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch

from oar_lightning.common.ranges import NonNegativeInt, checked

log = logging.getLogger(__name__)

Name = Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "constant", "constant_with_warmup"]
"""The schedules of `transformers` that are a function of the step, and need no setting besides the warm-up.

The others read a metric (`greedy`, `reduce_lr_on_plateau`), or the rate or the length of their end.
"""


def set_rates(scheduler: Any) -> None:
    """Give the optimizer the rates of the step that a schedule of factors is at."""
    for group, base, factor in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * factor(scheduler.last_epoch)


@checked("schedule")
@dataclass(frozen=True)
class Schedule:
    """A `transformers` schedule, counted in optimizer steps.

    Args:
        name: of the schedule.
        warmup_steps: steps of linear warm-up from 0; `constant` has none.
    """

    name: Name = "constant_with_warmup"
    warmup_steps: NonNegativeInt = 10

    def with_optimizer(self, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
        """What `configure_optimizers` returns for `steps` optimizer steps in all."""
        from transformers import get_scheduler

        if self.name == "constant" and self.warmup_steps:
            log.warning(
                "schedule.warmup_steps=%d: without effect, since schedule.name=constant has no warm-up; set "
                "schedule.name=constant_with_warmup, or schedule.warmup_steps=0",
                self.warmup_steps,
            )
        elif self.warmup_steps >= steps:
            log.warning(
                "schedule.warmup_steps=%d, and the run has %d optimizer steps: the learning rate does not reach optimizer.lr; "
                "lower schedule.warmup_steps for a run as short as this",
                self.warmup_steps,
                steps,
            )
        scheduler = get_scheduler(self.name, optimizer, num_warmup_steps=self.warmup_steps, num_training_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
