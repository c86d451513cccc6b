"""Writes a run's artifacts: files in the run's folder, which also go to MLflow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from oar_lightning.common.jsonl import table_json
from oar_lightning.common.mappings import flatten
from oar_lightning.common.outputs import replace_file
from oar_lightning.tracking.history import Resumption
from oar_lightning.tracking.mlflow_logger import DurableMLFlowLogger


class Tracker:
    """Writes artifacts to the run's folder and to MLflow, and tags to MLflow. Rank 0 only.

    Metrics and parameters go to MLflow and to `others`, the loggers beside it.
    """

    def __init__(self, run_dir: Path, logger: DurableMLFlowLogger | None, others: Sequence[Logger] = ()) -> None:
        self.run_dir = run_dir
        self.logger = logger
        self.others = tuple(others)
        self.is_closed = False

    @property
    def loggers(self) -> list[Logger]:
        """All loggers, MLflow's first."""
        return [*([self.logger] if self.logger else []), *self.others]

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None until it is known."""
        return self.logger.run_id if self.logger else None

    @rank_zero_only
    def start(self, offline: bool = False) -> None:
        """`offline`: see `DurableMLFlowLogger.start`."""
        if self.logger is not None:
            self.logger.start(offline)

    @rank_zero_only
    def write_text(self, name: str, text: str) -> None:
        """Write `name` (a relative path) under ``artifacts/`` and log it under the same path."""
        self._write(name, text, table=False)

    @rank_zero_only
    def write_table(self, name: str, columns: dict[str, list[Any]]) -> None:
        """Write a table in the format that the MLflow UI shows (`table_json`)."""
        self._write(name, table_json(list(columns), list(zip(*columns.values(), strict=True))), table=True)

    @rank_zero_only
    def attach(self, path: Path) -> None:
        """Log a file of the run's folder, under its name."""
        if self.logger is not None:
            self.logger.log_file(path, "", False)

    def _write(self, name: str, text: str, table: bool) -> None:
        path = self.run_dir / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
        if self.logger is not None:
            self.logger.log_file(path, os.path.dirname(name), table)

    @rank_zero_only
    def write_metrics(self, metrics: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step)

    @rank_zero_only
    def describe(self, config: dict[str, Any], tags: dict[str, str]) -> None:
        """Log the flattened config as parameters, and the tags. A resumed run keeps its existing parameters."""
        for logger in self.loggers if config else ():
            logger.log_hyperparams(flatten(config))
        if self.logger is not None:
            self.logger.set_tags(tags)

    @rank_zero_only
    def write_datasets(self, datasets: Sequence[Mapping[str, str]]) -> None:
        """Log the problems of the run (see `DurableMLFlowLogger.log_datasets`)."""
        if self.logger is not None:
            self.logger.log_datasets(datasets)

    @rank_zero_only
    def register(self, folder: Path, step: int) -> None:
        """Register the exported policy, where the logger is told to."""
        if self.logger is not None:
            self.logger.register(folder, step)

    @rank_zero_only
    def reopen(self, step: int) -> None:
        """Mark a resumed run as running again, and the points logged for steps after `step` as superseded."""
        if self.logger is not None:
            now = self.logger.set_status("RUNNING")
            self.logger.set_tags(Resumption(now, step).tag())

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """A block at whose end the run is over: finished, failed where an error ends it, killed where a signal does."""
        try:
            yield
        except BaseException as error:
            self.close("FAILED" if isinstance(error, Exception) else "KILLED")
            raise
        self.close("FINISHED")

    @rank_zero_only
    def close(self, status: str) -> None:
        """Record the run's final status and deliver the remaining records; later calls do nothing."""
        others, self.others, self.is_closed = self.others, (), True
        for logger in others:
            logger.finalize("success" if status == "FINISHED" else "failed")
        if self.logger is not None:
            self.logger.close(status)
