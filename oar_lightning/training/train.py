"""A whole run in one call, for programs and notebooks; the command's way is `oar_lightning/tasks/train.py`."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import RUN_LOCK, FileLock
from oar_lightning.distributed.launch import is_first_rank, run_name
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, LAST
from oar_lightning.training.run import Run, assemble, starting_policy
from oar_lightning.training.settings import Settings

TRAINER = {"accelerator": "auto", "devices": 1, "gradient_clip_val": 1.0, "log_every_n_steps": 1}
"""Arguments of Lightning's Trainer where `train` gets no others."""

DECIDED = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "default_root_dir",
    "enable_checkpointing",
    "enable_model_summary",
    "fast_dev_run",
    "limit_predict_batches",
    "limit_test_batches",
    "limit_train_batches",
    "limit_val_batches",
    "max_epochs",
    "max_time",
    "min_epochs",
    "min_steps",
    "num_sanity_val_steps",
    "overfit_batches",
    "plugins",
    "reload_dataloaders_every_n_epochs",
    "use_distributed_sampler",
    "val_check_interval",
)
"""Arguments of Lightning's Trainer that the run sets itself."""


def train(
    settings: Settings,
    max_steps: int,
    folder: str | Path | None = None,
    *,
    logger: Logger | Sequence[Logger] = (),
    callbacks: Sequence[L.Callback] = (),
    **trainer: Any,
) -> Run:
    """Train as `python -m oar_lightning` does, and return the run: its `policy`, `evaluation` and `trainer`.

    Args:
        settings: what is trained, on what, and how.
        max_steps: optimizer steps.
        folder: of checkpoints, tables and heat-maps; None for a new one in outputs/python. Several ranks need its name.
        logger: Lightning's loggers, which get all metrics.
        callbacks: more of Lightning's callbacks.
        trainer: more arguments of Lightning's Trainer, such as accelerator, devices and precision.

    Raises:
        ConfigError: for settings that cannot work, and where another run is at work in the folder.
        KeyboardInterrupt: after an interrupt, at the end of the optimizer step; the checkpoint is saved by then.
    """
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise ConfigError(f"max_steps counts optimizer steps and must be an integer >= 1, got {max_steps!r}")
    if settings.train is None:
        raise ConfigError("train=None leaves nothing to train on; give Settings training problems, e.g. ListedProblems([...])")
    if decided := sorted(trainer.keys() & set(DECIDED)):
        raise ConfigError(f"{decided[0]}={trainer[decided[0]]!r} is set by the run itself; leave it out")
    settings.check()
    if settings.supervised is None:
        settings.check_rl()
    run_dir = new_folder(settings.seed) if folder is None else Path(folder).expanduser()
    if (run_dir / CHECKPOINTS / LAST).exists():
        raise ConfigError(
            f"folder={run_dir} holds a run, and a new one would overwrite it; name another folder, or remove this one"
        )
    lock = FileLock(run_dir / RUN_LOCK)
    if is_first_rank() and not lock.acquire(wait=False):
        raise ConfigError(f"folder={run_dir}: another run is at work there; wait for its end, or name another folder")
    if not torch.cuda.is_available():  # as the command sets it, which says why; numbers differ in their last bits without it
        os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    try:
        L.seed_everything(settings.seed, workers=True, verbose=False)
        make_trainer = functools.partial(L.Trainer, **{**TRAINER, "max_steps": max_steps, **trainer})
        loggers = [logger] if isinstance(logger, Logger) else logger
        progress = trainer.get("enable_progress_bar") is not False
        run = assemble(settings, starting_policy(settings), make_trainer, run_dir, loggers, callbacks, progress)
        if folder is None and run.trainer.world_size > 1:  # each rank would make one of its own
            raise ConfigError(f"folder=None names no folder that {run.trainer.world_size} ranks share; name one")
        run.fit()
    finally:
        lock.release()
    if run.stop.received is not None and run.trainer.global_step < max_steps:
        raise KeyboardInterrupt(f"stopped at step {run.trainer.global_step} of {max_steps}; {run_dir} has the checkpoint")
    return run


def new_folder(seed: int) -> Path:
    """A folder that is not there yet, named by the time."""
    folder = first = Path("outputs", "python", f"seed{seed}", run_name())
    number = 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder
