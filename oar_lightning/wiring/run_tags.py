"""The tags and parameters by which runs are told apart in MLflow, for every task that logs there."""

from __future__ import annotations

import shlex
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import current_ticket, job_folder, write_run_id
from oar_lightning.tracking.revision import git_revision
from oar_lightning.tracking.surroundings import surroundings
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.wiring.config import plain


def run_tags(cfg: DictConfig) -> dict[str, str]:
    ticket = current_ticket()
    return {
        **({**ticket.tags(), "mlflow.runName": f"{ticket.sweep}-{ticket.number:04d}"} if ticket else {}),
        "experiment": str(cfg.name),
        "task": str(cfg.task),
        "scorer": str(HydraConfig.get().runtime.choices.get("scorer")),
        "data": str(cfg.data.name),
        "seed": str(cfg.seed),
        "git_revision": git_revision(),
        "overrides": shlex.join(HydraConfig.get().overrides.task),
        **surroundings(str(cfg.trainer.accelerator)),
    }


def note_run(tracker: Tracker) -> None:
    """In a sweep's trial, tell the sweep which MLflow run it logs to."""
    folder = job_folder()
    if folder is not None and is_first_rank():
        write_run_id(folder, tracker.run_id)


def run_parameters(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without where it is logged to: what a run is compared by."""
    return {key: value for key, value in plain(cfg).items() if key not in ("logger", "loggers")}
