"""What a config may say to Lightning's Trainer, and the callbacks that it names."""

from __future__ import annotations

from typing import Any

import lightning as L
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from oar_lightning.common.config_check import ConfigError

SET_HERE = {
    "logger": "loggers are a group: logger=mlflow, logger=[mlflow,csv] or logger=none",
    "accumulate_grad_batches": "it is set by the update plan; use update.microbatches instead",
    "max_epochs": "a run's length is trainer.max_steps, in optimizer steps",
    "max_time": "a run's length is trainer.max_steps, in optimizer steps",
    "default_root_dir": "the run's folder is hydra.run.dir",
    "use_distributed_sampler": "problems are divided among ranks by the package's own stream",
    "enable_checkpointing": "checkpoint_every_n_steps=0 keeps the last state alone, and trainer.fast_dev_run=true none",
    "limit_train_batches": "a run's length is trainer.max_steps; trainer.fast_dev_run=true makes one step",
    "overfit_batches": "+debug=overfit trains on one batch again and again",
}
"""Options of the Trainer that this package sets -> what to use in their place."""

PASSED_ON_ELSEWHERE = ("callbacks", "plugins", "fast_dev_run")


def check_trainer(trainer: DictConfig) -> None:
    """Raises ConfigError for an option that would be dropped."""
    for key, remedy in SET_HERE.items():
        if key in trainer:
            raise ConfigError(f"trainer.{key}={trainer[key]} would be overwritten: {remedy}")
    steps = trainer.get("fast_dev_run", False)
    if not isinstance(steps, bool | int) or steps < 0:
        raise ConfigError(f"trainer.fast_dev_run must be true, false or a number of optimizer steps, got {steps!r}")


def trainer_options(trainer: DictConfig) -> DictConfig:
    """The options that go to the Trainer as they are."""
    return OmegaConf.masked_copy(trainer, [str(key) for key in trainer if key not in PASSED_ON_ELSEWHERE])


def own_callbacks(cfg: DictConfig) -> list[L.Callback]:
    """The callbacks of `callbacks` (by name) and of `trainer.callbacks` (a list).

    Raises:
        ConfigError: for what is no callback.
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
        built.append(callback)
    return built


def development_run(cfg: DictConfig) -> DictConfig:
    """With `trainer.fast_dev_run`: a config of one optimizer step (or so many) through all stages, which keeps nothing.

    Evaluations before and after are of two problems. Nothing is logged, saved or exported.

    Raises:
        ConfigError: for a run that is resumed.
    """
    steps = int(cfg.trainer.get("fast_dev_run") or 0)
    if not steps:
        return cfg
    if cfg.resume or cfg.ckpt_path is not None:
        raise ConfigError(
            f"trainer.fast_dev_run={cfg.trainer.fast_dev_run} tries a run and keeps nothing, so it resumes none; leave out "
            "resume and ckpt_path"
        )
    short = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    assert isinstance(short, DictConfig)
    with open_dict(short):
        short.trainer.max_steps = steps
        short.logger, short.loggers = None, {}
        short.checkpoint_every_n_steps, short.checkpoints.last, short.checkpoints.best = 0, 0, 0
        short.evaluation.every_n_steps, short.evaluation.problems = 0, 2
    return short
