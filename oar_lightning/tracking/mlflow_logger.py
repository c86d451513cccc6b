"""A Lightning logger for MLflow that works while the server is away: records go to a journal first and are delivered later.

Every call appends a record to the journal in the run's folder and returns; a thread delivers the records. ``task=sync``
delivers what a killed run or an unreachable server left undelivered.
"""

from __future__ import annotations

import atexit
import logging
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import without_users
from oar_lightning.common.paths import local_artifacts
from oar_lightning.tracking.courier import Courier, short
from oar_lightning.tracking.journal import Journal, JournalInUse
from oar_lightning.tracking.mlflow_store import MLflowConfig, check_store, unreachable

if TYPE_CHECKING:  # MLflow takes seconds to import, and runs with logger=none do without it
    from mlflow import MlflowClient

    from oar_lightning.tracking.delivery import Delivery
    from oar_lightning.tracking.system_metrics import SystemMetrics

log = logging.getLogger(__name__)

FOLDER = "tracking"
"""The journal's folder in a run's folder."""

UPLOAD_S = 3600.0
"""Longest wait for the upload of a policy. Requests that hang end much earlier by themselves."""


class DurableMLFlowLogger(Logger):
    """Logs to the journal in `folder`, a folder in the run's folder, and from there to MLflow.

    `run_id`: continue this run of the store. `resume`: continue the journal in `folder`. Ranks other than 0 do nothing. Call
    `start` first and `close` last.
    """

    def __init__(self, config: MLflowConfig, folder: Path, run_id: str | None = None, resume: bool = False) -> None:
        super().__init__()
        self.config = config
        self.folder = folder
        self.seconds = 0.0
        """Seconds that calls of the logger have taken."""
        self.delivery_cpu_s = 0.0
        """CPU seconds of the thread that delivers; known after `close`."""
        self._resume = (run_id, resume)
        self._journal: Journal | None = None
        self._delivery: Delivery | None = None
        self._courier: Courier | None = None
        self._monitor: SystemMetrics | None = None

    @rank_zero_only
    def check(self) -> None:
        """See `check_store`."""
        check_store(self.config)

    @rank_zero_only
    def start(self, offline: bool = False) -> None:
        """Open the journal, and create the MLflow run or find it again. `offline`: as with `offline_start`.

        Raises:
            ConfigError: where the store cannot be reached and `offline_start` is off, or the journal is in use.
        """
        from oar_lightning.tracking.delivery import Delivery

        offline = offline or self.config.offline_start
        run_id, resume = self._resume
        self._journal = open_journal(self.folder)
        if not resume and self._journal.end.records:
            self._journal.close()
            archive(self.folder)
            self._journal = open_journal(self.folder)
        is_new = not self._journal.end.records
        if is_new:
            self.record("run", **self._first_record(run_id))
        self._delivery = Delivery(self.folder, self.config.absolute_uri)
        if not offline:
            try:
                self._delivery.open_run()
            except Exception as error:
                self._journal.close()
                if is_new:
                    shutil.rmtree(self.folder)  # else task=sync would create a run that never started
                if isinstance(error, ConfigError):
                    raise
                before = str(self._delivery.run["tracking_uri"])
                recorded = None if before == self.config.absolute_uri else before
                raise ConfigError(unreachable(self.config.tracking_uri, error, recorded)) from error
        self._courier = Courier(self._delivery, self.config.deliver_every_s)
        self._courier.start()
        if offline and not self._courier.flush(self.config.max_stall_s):
            log.warning(
                "logger.tracking_uri=%s cannot be reached yet; recording in %s",
                without_users(self.config.absolute_uri),
                self.folder,
            )
        if self.config.system_metrics:
            from oar_lightning.tracking.system_metrics import SystemMetrics  # needs psutil

            self._monitor = SystemMetrics(self.log_metrics)
            self._monitor.start()
        atexit.register(self.close)

    def _first_record(self, run_id: str | None) -> dict[str, Any]:
        from mlflow.tracking.context.registry import resolve_tags

        from oar_lightning.tracking.delivery import JOURNAL_TAG

        location = self.config.artifact_location or local_artifacts(self.config.absolute_uri)
        tags = resolve_tags({str(key): str(value) for key, value in self.config.tags.items()})
        return {
            "tracking_uri": self.config.absolute_uri,
            "experiment": self.config.experiment_name,
            "artifact_location": location,
            "run_name": self.config.run_name,
            "tags": {**tags, JOURNAL_TAG: uuid.uuid4().hex},
            "run_id": run_id,
        }

    def record(self, kind: str, **content: Any) -> int:
        """Append one record and return its time in ms."""
        assert self._journal is not None, "start() comes first, close() last"
        started = time.perf_counter()
        time_ms = self._journal.append(kind, **content)
        self.seconds += time.perf_counter() - started
        return time_ms

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {re.sub(r"[^\w/. :-]", "_", key): float(value) for key, value in metrics.items()}
        self.record("metrics", step=step or 0, values=values)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.record("params", values={str(key): str(value) for key, value in dict(params).items()})

    @rank_zero_only
    def set_tags(self, tags: Mapping[str, str]) -> None:
        self.record("tags", values={str(key): str(value) for key, value in tags.items()})

    @rank_zero_only
    def log_file(self, path: Path, folder: str, table: bool = False) -> None:
        """Log a file of the run's folder under `folder`. The file must not be moved, and must only be replaced atomically."""
        relative = path.absolute().relative_to(self.folder.parent.absolute())
        self.record("table" if table else "artifact", path=str(relative), folder=folder)

    @rank_zero_only
    def log_datasets(self, datasets: Sequence[Mapping[str, str]]) -> None:
        """Log datasets: the fields of MLflow's ``Dataset``, and ``context``, the dataset's part in the run."""
        self.record("datasets", datasets=[dict(dataset) for dataset in datasets])

    @rank_zero_only
    def register(self, folder: Path, step: int) -> None:
        """Upload the policy in `folder` and make it a version of `register_as`, where that is set; waits for the upload."""
        if self.config.register_as is None or self._courier is None:
            return
        self.record("register", model=self.config.register_as, path=str(folder.resolve()), folder=f"policy/step_{step:06d}")
        self._courier.flush(UPLOAD_S)

    def set_status(self, status: str) -> int:
        """Record the run's status; returns the record's time in ms. Rank 0 only."""
        return self.record("status", status=status)

    @rank_zero_only
    def close(self, status: str | None = None) -> None:
        """Record the run's final status, where it is known, and deliver the remaining records, for at most `max_stall_s`.

        Later calls do nothing. Lightning's `finalize` does not close the logger, because the policy is exported after it.
        """
        if self._journal is None or self._courier is None:
            return
        if self._monitor is not None:
            self._monitor.finish()
        if status is not None:
            self.set_status(status)
        started = time.perf_counter()
        self._courier.flush(self.config.max_stall_s)
        self._courier.stop()
        self.seconds += time.perf_counter() - started
        left, self.delivery_cpu_s = self._courier.delivery.left(), self._courier.cpu_s
        self._journal.close()
        self._journal, courier, self._courier = None, self._courier, None
        atexit.unregister(self.close)
        if left:
            server = without_users(courier.delivery.tracking_uri)
            problem = short(courier.problem) if courier.problem else "not in time"
            log.warning(
                "%d records could not be delivered to %s (%s); they are in %s. When it is back: "
                "python -m oar_lightning task=sync sync.folder=%s",
                *(left, server, problem, self.folder, self.folder.parent),
            )
        log.info(
            "logging took %.2f s of the run's time, and %.2f s of a background thread's processor time",
            *(self.seconds, self.delivery_cpu_s),
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> MlflowClient:
        """MLflow's client, for requests that the logger does not offer. Its calls fail while the server is away.

        Raises:
            AttributeError: where it never could be reached. The trainer asks each logger whether it has an `experiment`, and
                with `offline_start` the run goes on without one.
        """
        assert self._delivery is not None, "start() comes first"
        try:
            return self._delivery.client
        except Exception as error:
            raise AttributeError(f"{self._delivery.tracking_uri} is away, so there is no client yet ({error})") from error

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None on ranks other than 0, and until the run is created."""
        return self._delivery.state.run_id if self._delivery else None

    @property
    def name(self) -> str:
        return self.config.experiment_name

    @property
    def version(self) -> str | None:
        return self.run_id


def open_journal(folder: Path) -> Journal:
    """The journal for writing.

    Raises:
        ConfigError: where another process writes it.
    """
    try:
        return Journal(folder)
    except JournalInUse as error:
        raise ConfigError(f"{error}; wait for it to end, or start a run of its own") from error


def archive(folder: Path) -> None:
    """Rename the folder of an earlier run's journal to a name with a number, to make room for a new one."""
    number = 1
    while (archived := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(archived)
