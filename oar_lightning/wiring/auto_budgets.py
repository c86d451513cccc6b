"""The start values of token budgets that are `auto`: on a GPU, what the memory plan proposes."""

from __future__ import annotations

import copy
import logging

import torch
from omegaconf import DictConfig, open_dict

from oar_lightning.planning import PlanConfig
from oar_lightning.planning.job import plan_job
from oar_lightning.planning.proposal import propose, set_start
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.wiring.plan import read_job
from oar_lightning.wiring.run import Run
from oar_lightning.wiring.settings import build_method

log = logging.getLogger(__name__)


def set_start_from_plan(cfg: DictConfig, run: Run) -> None:
    """Set the budgets that fit into the free memory of the GPU.

    Without a GPU or a plan, budgets start like `null`, a scorer's with its default.
    """
    device = run.trainer.strategy.root_device
    if device.type != "cuda" or not isinstance(run.module, PolicyOptimization):
        return
    budgets = run.module.budgets
    if not any(budget.auto for budget in budgets):
        return
    here = copy.deepcopy(cfg)
    with open_dict(here):
        here.trainer.devices, here.trainer.num_nodes = run.trainer.num_devices, run.trainer.num_nodes
    free, whole = torch.cuda.mem_get_info(device)
    config = PlanConfig(card_gb=whole / 1e9)
    try:
        job = read_job(here, config, build_method(here))
        planned = plan_job(job)
        set_start(job, planned, propose(job, planned, (1 - config.reserve) * free))
    except (ValueError, RuntimeError) as error:  # the latter of operations that cannot run without values
        log.warning("no memory plan, so budgets that are auto start without one: %s", error)
        return
    for own, of_plan in zip(budgets, job.budgets, strict=True):
        own.set_start(of_plan.tokens)
    started = ", ".join(f"{budget.key}={budget.tokens}" for budget in budgets if budget.auto)
    log.info("auto, planned for %.1f GB of free memory: %s", free / 1e9, started)
