"""Config -> a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.loggers import guarded
from oar_lightning.tracking.mlflow_logger import FOLDER, DurableMLFlowLogger
from oar_lightning.tracking.mlflow_store import MLflowConfig
from oar_lightning.training.callbacks import LastCheckpoint, SameStart
from oar_lightning.training.run import Run, assemble, starting_policy
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.lightning_options import own_callbacks, trainer_options
from oar_lightning.wiring.run_tags import presented
from oar_lightning.wiring.start import Start


def build_logger(
    cfg: DictConfig, run_dir: Path, run_id: str | None = None, resume: bool = False, tags: Mapping[str, str] = {}
) -> DurableMLFlowLogger | None:
    """The MLflow logger of a run, not started yet. It continues the MLflow run `run_id` where given.

    `tags`: more tags of a new run, from its start on.

    Raises:
        ConfigError: where the tracking server does not answer.
    """
    if cfg.logger is None:
        return None
    config: MLflowConfig = presented(instantiate(cfg.logger, _convert_="all"), cfg)
    ticket = current_ticket()
    # from the start, so that a trial that is killed early is found under its sweep
    config = replace(config, tags={**config.tags, **tags, **(ticket.tags() if ticket else {})})
    logger = DurableMLFlowLogger(config, run_dir / FOLDER, run_id, resume)
    logger.check()
    return logger


def build_others(cfg: DictConfig, run_dir: Path, step: int = 0) -> list[Logger]:
    """The loggers beside MLflow's. `step`: that from which the run goes on. A `_partial_` gets a folder in the run's.

    Raises:
        ImportError: where one needs a package that is not installed.
        ConfigError: for what is no logger.
    """
    found: list[Logger] = []
    for name, node in (cfg.get("loggers") or {}).items():
        if node is None:
            continue
        try:
            built = instantiate(node)
            built = built(folder=run_dir / str(name), step=step) if isinstance(built, functools.partial) else built
        except TypeError as error:  # an option that it does not have, or that is set already
            cause = error.__cause__ or error
            raise ConfigError(f"loggers.{name} cannot be made ({cause}); correct loggers.{name}.*") from error
        if not isinstance(built, Logger):
            raise ConfigError(f"loggers.{name} makes a {type(built).__name__}, which is no logger of Lightning")
        found.append(guarded(built, str(name)))
    return found


def build_run(cfg: DictConfig, settings: Settings, start: Start) -> Run:
    """Load the policy and put the run together. Its MLflow run is created later, by `tracker.start`."""
    logger = build_logger(cfg, start.run_dir, start.run_id, start.resumed, start.tags())
    others = build_others(cfg, start.run_dir, start.step)
    loggers = [*([logger] if logger else []), *others]
    callbacks = [SameStart(start.step), *start.callbacks(), *own_callbacks(cfg, logged=bool(loggers))]
    make_trainer = functools.partial(build_trainer, cfg.trainer)
    progress = cfg.trainer.get("enable_progress_bar") is not False
    policy = starting_policy(settings)
    return assemble(settings, policy, make_trainer, start.run_dir, loggers, callbacks, progress=progress)


def build_trainer(options: DictConfig, **decided: Any) -> L.Trainer:
    """Lightning's Trainer of a config, and of what the run decides. With `fast_dev_run` it keeps no checkpoints."""
    decided["plugins"] = [*decided["plugins"], *(instantiate(options.get("plugins")) or [])]
    decided["enable_model_summary"] = bool(options.get("enable_model_summary"))
    if options.get("fast_dev_run"):
        decided["callbacks"] = [c for c in decided["callbacks"] if not isinstance(c, LastCheckpoint)]
        decided["enable_checkpointing"] = False
    trainer: L.Trainer = instantiate(trainer_options(options), **decided)
    return trainer
