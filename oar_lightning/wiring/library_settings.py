"""Settings that only a library can judge: they are tried on it, before anything slow."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.culprit import explained
from oar_lightning.wiring.lightning_options import trainer_options


def check_optimizer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that the optimizer refuses. Other optimizers than torch's may compile code, and are
    not tried."""
    optimizer = instantiate(cfg.optimizer)
    if str(cfg.optimizer["_target_"]).startswith("torch.optim."):
        explained(partial(optimizer.func, [torch.nn.Parameter(torch.zeros(1))]), optimizer.keywords, "optimizer")


def try_trainer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that Lightning's trainer refuses."""
    accelerator = cfg.trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}: torch finds no GPU here; use trainer=cpu, or with the trainer of several "
            "ranks trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true"
        )
    settings = {str(key): value for key, value in trainer_options(cfg.trainer).items() if key != "_target_"}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

    def make(**settings: Any) -> object:
        return instantiate({"_target_": cfg.trainer["_target_"], **settings, **quiet})

    explained(make, settings, "trainer")
