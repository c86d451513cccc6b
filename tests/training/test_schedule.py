"""Schedules: the names on offer are those of `transformers` that run from a name and a warm-up alone."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from transformers import SchedulerType, get_scheduler

from oar_lightning.training.schedule import Name, Schedule


def runs(name: str) -> bool:
    """Whether the schedule can be made of a name and a warm-up, and be stepped without a metric, as Lightning does."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    try:
        schedule = get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=6)
        optimizer.step()
        schedule.step()
    except (TypeError, ValueError):
        return False
    return True


def test_the_schedules_on_offer_are_all_that_run() -> None:
    assert set(get_args(Name)) == {kind.value for kind in SchedulerType if runs(kind.value)}


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy", "warmup_stable_decay"])
def test_another_one_is_refused_and_not_offered(name: str) -> None:
    with pytest.raises(ValueError, match=rf"schedule\.name must be one of linear, .*, got '{name}'$") as refused:
        Schedule(name)
    assert name not in str(refused.value).partition(", got ")[0]
