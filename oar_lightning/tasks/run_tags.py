"""What runs are told apart by in MLflow, the same for every task that logs there."""

from __future__ import annotations

from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.build import plain
from oar_lightning.tasks.surroundings import surroundings
from oar_lightning.tracking import git_revision


def run_tags(cfg: DictConfig) -> dict[str, str]:
    return {
        "experiment": str(cfg.name),
        "task": str(cfg.task),
        "scorer": str(HydraConfig.get().runtime.choices.get("scorer")),
        "data": str(cfg.data.name),
        "seed": str(cfg.seed),
        "git_revision": git_revision(),
        "overrides": " ".join(HydraConfig.get().overrides.task),
        **surroundings(str(cfg.trainer.accelerator)),
    }


SECTIONS = ("audit", "benchmark", "decontaminate", "report", "score", "sweep", "sync")
"""Parts of the config that only the task of their name reads."""


def run_parameters(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without the other tasks' sections and where it is logged to: what a run is compared by."""
    return {key: value for key, value in plain(cfg).items() if key == cfg.task or key not in (*SECTIONS, "logger")}
