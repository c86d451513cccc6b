"""Loggers beside MLflow: CSV files, TensorBoard, Weights & Biases, Trackio. Each writes into a folder of its own in the run's.

They get all metrics and parameters. Tables, heat-maps and the config are in the run's folder, and in MLflow.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

CALLS = ("log_metrics", "log_hyperparams", "save", "finalize")
"""What a run asks of a logger."""


def csv_logger(folder: Path, step: int, **options: Any) -> Logger:
    """``<folder>/version_<n>/metrics.csv``; each start of a run has a version of its own. `options`: those of `CSVLogger`."""
    return CSVLogger(folder.parent, folder.name, **options)


def tensorboard_logger(folder: Path, step: int, **options: Any) -> Logger:
    """Event files. What an earlier start has logged of steps after `step`, or all where that is 0, is run again and hidden."""
    need("tensorboard", "tensorboard")
    repeated = step + 1 if step else 0  # a run that ended before its first checkpoint begins with its evaluation again
    return TensorBoardLogger(folder, name="", version="", default_hp_metric=False, purge_step=repeated, **options)


def wandb_logger(folder: Path, step: int, **options: Any) -> Logger:
    """Weights & Biases, which writes to ``wandb/`` beside `folder`. A resumed run keeps its id. `options`: of `WandbLogger`."""
    need("wandb", "wandb")
    folder.parent.mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return WandbLogger(save_dir=folder.parent, id=identity, resume="allow", **options)


def trackio_logger(folder: Path, step: int, project: str = "oar_lightning", name: str | None = None) -> Logger:
    """Trackio: a local store in `folder`."""
    need("trackio", "trackio")
    return TrackioLogger(folder, project, name)


def need(package: str, logger: str) -> None:
    """Raises: ImportError: where a logger's package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"logger={logger} needs the optional extra: pip install -e '.[{logger}]'")


class TrackioLogger(Logger):
    """Lightning has none for Trackio. The first record opens the run; Trackio itself finishes it when the process ends."""

    def __init__(self, folder: Path, project: str, name: str | None) -> None:
        super().__init__()
        self.folder, self.project, self.run_name = folder, project, name
        self._run: Any = None

    @property
    def name(self) -> str:
        return self.project

    @property
    def version(self) -> str | None:
        return self.run_name

    def _opened(self) -> Any:
        if self._run is None:
            import os

            self.folder.mkdir(parents=True, exist_ok=True)
            os.environ["TRACKIO_DIR"] = str(self.folder)  # read when it is imported
            import trackio

            self._run = trackio.init(project=self.project, name=self.run_name, resume="allow", embed=False)
        return self._run

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._opened().log(dict(metrics), step=step)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self._opened().config.update({str(key): value for key, value in dict(params).items()})


def guarded(logger: Logger, name: str) -> Logger:
    """The same logger, but an error of it is logged once, and it is asked no more: none of them may end a run."""
    broken = False

    def guard(call: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(call)
        def safe(*arguments: Any, **named: Any) -> None:
            nonlocal broken
            if broken:
                return
            try:
                call(*arguments, **named)
            except Exception as error:  # whatever its library raises
                broken = True
                log.error("loggers.%s gets nothing more in this run: %s: %s", name, type(error).__name__, error)

        return safe

    for call in CALLS:
        setattr(logger, call, guard(getattr(logger, call)))
    return logger
