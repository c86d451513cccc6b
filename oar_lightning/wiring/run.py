"""Config -> a run."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.mlflow_logger import FOLDER, DurableMLFlowLogger, MLflowConfig
from oar_lightning.training.run import Run, assemble, starting_policy
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.run_tags import presented


def build_logger(cfg: DictConfig, run_dir: Path, run_id: str | None = None, resume: bool = False) -> DurableMLFlowLogger | None:
    """The MLflow logger of a run, not started yet. It continues the MLflow run `run_id` where given.

    Raises:
        ConfigError: where the tracking server does not answer.
    """
    if cfg.logger is None:
        return None
    config: MLflowConfig = presented(instantiate(cfg.logger, _convert_="all"), cfg)
    ticket = current_ticket()
    if ticket is not None:  # from the start, so that a trial that is killed early is found under its sweep
        config = replace(config, tags={**config.tags, **ticket.tags()})
    logger = DurableMLFlowLogger(config, run_dir / FOLDER, run_id, resume)
    logger.check()
    return logger


def build_run(cfg: DictConfig, settings: Settings, run_dir: Path, run_id: str | None, resume: bool) -> Run:
    """Load the policy and put the run together. Its MLflow run is created later, by `tracker.start`."""
    logger = build_logger(cfg, run_dir, run_id, resume)
    loggers = [logger] if logger else []
    make_trainer = functools.partial(instantiate, cfg.trainer)
    progress = cfg.trainer.get("enable_progress_bar") is not False
    return assemble(settings, starting_policy(settings), make_trainer, run_dir, loggers, progress=progress)
