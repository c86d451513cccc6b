"""Schedules: the names on offer are those of `transformers` that run from a name and a warm-up alone."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import get_args

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy
from transformers import SchedulerType, get_scheduler

from oar_lightning.training.callbacks.checkpoint import LastCheckpoint
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


def test_a_run_that_goes_on_for_longer_has_the_rates_of_its_own_schedule(tmp_path: Path) -> None:
    """The checkpoint of its former end has a rate of 0."""

    def rates(steps: int, ckpt_path: str | None = None) -> dict[int, float]:
        module = make_module(tiny_policy())
        module.schedule = Schedule("linear", warmup_steps=0)
        rows = fit(module, steps, [LastCheckpoint(tmp_path, 1)], ckpt_path).rows
        return {step: row["learning_rate"] for step, row in rows.items() if "learning_rate" in row}

    rates(2)
    longer = rates(6, str(tmp_path / "last.ckpt"))
    assert longer == pytest.approx({step: 1e-3 * (1 - (step - 1) / 6) for step in (3, 4, 5, 6)})


def test_a_resumed_run_has_its_own_choice_of_foreach(tmp_path: Path) -> None:
    """It changes speed and memory alone, and is what a run that ran out of memory is resumed with."""

    def chosen(steps: int, foreach: bool, ckpt_path: str | None = None) -> list[bool]:
        module = make_module(tiny_policy())
        module.make_optimizer = functools.partial(module.make_optimizer, foreach=foreach)
        seen: list[bool] = []

        class Look(L.Callback):
            def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
                seen.extend(group["foreach"] for group in trainer.optimizers[0].param_groups)

        fit(module, steps, [Look(), LastCheckpoint(tmp_path, 1)], ckpt_path)
        return seen

    assert chosen(1, True) == [True]
    assert chosen(2, False, str(tmp_path / "last.ckpt")) == [False]


@pytest.mark.parametrize(
    ("name", "steps", "told"),
    [("linear", 4, True), ("linear", 5, False), ("constant_with_warmup", 3, True)],
)
def test_a_run_that_ends_within_its_warmup_is_told(
    name: Name, steps: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = Schedule(name, warmup_steps=4).with_optimizer(optimizer, steps)["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert (max(rates) < 0.1) == told
    assert caplog.messages == told * [
        f"schedule.warmup_steps=4, and the run has {steps} optimizer steps: the learning rate does not reach optimizer.lr; "
        "lower schedule.warmup_steps for a run as short as this"
    ]


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy", "warmup_stable_decay"])
def test_another_one_is_refused_and_not_offered(name: str) -> None:
    with pytest.raises(ValueError, match=rf"schedule\.name must be one of linear, .*, got '{name}'$") as refused:
        Schedule(name)
    assert name not in str(refused.value).partition(", got ")[0]


@pytest.mark.parametrize("warmup", [0, 4])
def test_a_warm_up_that_a_constant_rate_does_not_have_is_told(warmup: int, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = Schedule("constant", warmup).with_optimizer(optimizer, 5)["lr_scheduler"]["scheduler"]
    assert scheduler.get_last_lr() == [0.1]
    assert caplog.messages == bool(warmup) * [
        "schedule.warmup_steps=4: without effect, since schedule.name=constant has no warm-up; set "
        "schedule.name=constant_with_warmup, or schedule.warmup_steps=0"
    ]
