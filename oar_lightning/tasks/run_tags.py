"""What runs are told apart by in MLflow, the same for every task that logs there."""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

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
    }
