"""Learning-rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

SCHEDULES = ("linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "constant", "constant_with_warmup")
"""The schedules of `transformers` that are a function of the step, and need no setting besides the warm-up.

The others read a metric (`greedy`, `reduce_lr_on_plateau`), or the rate or the length of their end.
"""


@dataclass(frozen=True)
class Schedule:
    """A `transformers` schedule, counted in optimizer steps.

    Args:
        name: one of `SCHEDULES`.
        warmup_steps: steps of linear warm-up from 0; `constant` has none.
    """

    name: str = "constant_with_warmup"
    warmup_steps: int = 10

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise ValueError(f"schedule.name must be one of {', '.join(SCHEDULES)}, got {self.name}")
        if self.warmup_steps < 0:
            raise ValueError(f"schedule.warmup_steps must be >= 0, got {self.warmup_steps}")

    def with_optimizer(self, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
        """What `configure_optimizers` returns for `steps` optimizer steps in all."""
        from transformers import get_scheduler

        scheduler = get_scheduler(self.name, optimizer, num_warmup_steps=self.warmup_steps, num_training_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
