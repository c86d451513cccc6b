"""What a config may say to Lightning's Trainer, and the callbacks that it names."""

from __future__ import annotations

from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor
from omegaconf import DictConfig, OmegaConf, open_dict

from oar_lightning.common.config_check import ConfigError

PASSED_ON_ELSEWHERE = ("callbacks", "plugins", "fast_dev_run")


def trainer_options(trainer: DictConfig) -> DictConfig:
    """The options that go to the Trainer as they are."""
    return OmegaConf.masked_copy(trainer, [str(key) for key in trainer if key not in PASSED_ON_ELSEWHERE])


NEED_A_LOGGER = (DeviceStatsMonitor, LearningRateMonitor)


def own_callbacks(cfg: DictConfig, logged: bool = True) -> list[L.Callback]:
    """The callbacks of `callbacks` (by name) and of `trainer.callbacks` (a list). `logged`: whether the run has a logger.

    Raises:
        ConfigError: for what is no callback, and for one of `NEED_A_LOGGER` where there is none.
    """
    named: dict[str, Any] = {f"callbacks.{name}": node for name, node in (cfg.get("callbacks") or {}).items()}
    listed = cfg.trainer.get("callbacks") or []
    if not OmegaConf.is_list(listed) and listed != []:
        listed = [listed]
    named |= {f"trainer.callbacks[{number}]": node for number, node in enumerate(listed)}
    built = []
    for key, node in named.items():
        if node is None:
            continue
        callback = instantiate(node)
        if not isinstance(callback, L.Callback):
            raise ConfigError(
                f"{key} makes a {type(callback).__name__}, which is no callback of Lightning; name one by {key}._target_"
            )
        if isinstance(callback, NEED_A_LOGGER) and not logged:
            raise ConfigError(f"{key} has nothing to write to without a logger; choose logger=csv, or leave it out")
        built.append(callback)
    return built


def development_run(cfg: DictConfig) -> DictConfig:
    """With `trainer.fast_dev_run`: a config of one optimizer step (or so many) through all stages, which keeps no policy.

    Evaluations are of two problems, and one follows each step where any follow steps. Nothing goes to a logger, no checkpoint
    is saved and no policy exported; the log and artifacts stay in the run's folder.

    Raises:
        ConfigError: for a run that is resumed.
    """
    steps = int(cfg.trainer.get("fast_dev_run") or 0)
    if not steps:
        return cfg
    if cfg.resume or cfg.ckpt_path is not None:
        raise ConfigError(
            f"trainer.fast_dev_run={cfg.trainer.fast_dev_run} tries a run and keeps no checkpoint, so it resumes none; leave "
            "out resume and ckpt_path"
        )
    short = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    assert isinstance(short, DictConfig)
    with open_dict(short):
        short.trainer.max_steps = steps
        short.logger, short.loggers = None, {}
        short.checkpoint_every_n_steps, short.checkpoints.last, short.checkpoints.best = 0, 0, 0
        short.evaluation.every_n_steps, short.evaluation.problems = min(1, int(cfg.evaluation.every_n_steps)), 2
    return short
