"""Where budgets that are `auto` start on a GPU: what a plan for its free memory proposes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose
from support.composing import Prepare
from support.fixtures import built_in_policy, make_module

from oar_lightning.credit.scorers import OarG
from oar_lightning.planning import PlanConfig
from oar_lightning.planning.config import LEAST_BUDGET
from oar_lightning.planning.job import plan_job
from oar_lightning.planning.proposal import propose
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.wiring.auto_budgets import set_start_from_plan
from oar_lightning.wiring.plan import read_job
from oar_lightning.wiring.settings import build_method

SMALL = ("update.problems=8", "rollout.max_new_tokens=24")
"""Fewer and shorter completions, for time."""
FREE, WHOLE = 2e8, 2.5e8


@pytest.fixture(autouse=True)
def _composing(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepared` has Hydra ready to compose."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (FREE, WHOLE))


def started(device: str, *overrides: str, budget: Any = "auto") -> list[int | None]:
    """The budgets of update, rollout and scorer at the start of a run."""
    budgets = [f"{phase}.token_budget={budget}" for phase in ("update", "scorer")]
    cfg = compose("config", ["logger=none", "scorer=oar_g", "trainer.devices=auto", *SMALL, *budgets, *overrides])
    module = make_module(built_in_policy(), OarG(token_budget=budget), update=UpdatePlan(token_budget=budget))
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(strategy=strategy, num_devices=1, num_nodes=1)
    set_start_from_plan(cfg, SimpleNamespace(module=module, trainer=trainer))  # type: ignore[arg-type]
    return [budget.tokens for budget in module.budgets]


@pytest.mark.slow
def test_budgets_start_as_planned_for_the_free_memory(caplog: pytest.LogCaptureFixture) -> None:
    cfg = compose("config", ["logger=none", "scorer=oar_g", *SMALL])
    job = read_job(cfg, PlanConfig(card_gb=WHOLE / 1e9), build_method(cfg))
    proposal = propose(job, plan_job(job), 0.9 * FREE)
    assert proposal.update_tokens is not None
    assert proposal.update_tokens < job.completions * job.length  # bounded by the memory
    with caplog.at_level(logging.INFO):
        assert started("cuda") == [proposal.update_tokens, None, proposal.scorer_tokens]  # rollout's is not auto
    assert proposal.scorer_tokens is not None
    assert f"auto, planned for 0.2 GB of free memory: update.token_budget={proposal.update_tokens}, " in caplog.text


@pytest.mark.slow
def test_where_scoring_does_not_fit_it_starts_with_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4e7, WHOLE))
    assert started("cuda")[2] == LEAST_BUDGET


def test_on_the_cpu_and_without_a_plan_they_start_with_their_defaults(caplog: pytest.LogCaptureFixture) -> None:
    assert started("cpu") == [None, None, 2048]
    assert not caplog.records
    assert started("cuda", "optimizer._target_=torch.optim.Adagrad") == [None, None, 2048]
    assert "no memory plan, so budgets that are auto start without one: optimizer._target_=torch.optim.Adagrad" in caplog.text


def test_numbers_stay() -> None:
    assert started("cuda", budget=1234) == [1234, None, 1234]
