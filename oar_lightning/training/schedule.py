"""Learning-rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Schedule:
    """A `transformers` schedule, counted in optimizer steps.

    Args:
        name: `constant_with_warmup`, `linear`, `cosine`, ... (`transformers.SchedulerType`).
        warmup_steps: steps of linear warm-up from 0.
    """

    name: str = "constant_with_warmup"
    warmup_steps: int = 10

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"schedule.warmup_steps must be >= 0, got {self.warmup_steps}")

    def check(self) -> None:
        """Raises: ValueError: for a name that `transformers` does not know (looked up late: the import is slow)."""
        from transformers import SchedulerType

        known = [s.value for s in SchedulerType]
        if self.name not in known:
            raise ValueError(f"schedule.name must be one of {', '.join(known)}, got {self.name}")

    def with_optimizer(self, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
        """What `configure_optimizers` returns for `steps` optimizer steps in all."""
        from transformers import get_scheduler

        scheduler = get_scheduler(self.name, optimizer, num_warmup_steps=self.warmup_steps, num_training_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
