"""A Lightning logger for MLflow that a server which goes away neither stops nor stalls: journal first, deliver later.

Every call appends a record to the journal in the run's folder and returns; a thread delivers. What a killed run or a server
that stayed away left undelivered, ``task=sync`` delivers.
"""

from __future__ import annotations

import atexit
import logging
import re
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from mlflow import MlflowClient
from mlflow.tracking.context.registry import resolve_tags

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import local_artifacts, local_database
from oar_lightning.tracking.delivery import JOURNAL_TAG, Delivery
from oar_lightning.tracking.journal import Journal, JournalInUse
from oar_lightning.tracking.mlflow_client import connect

log = logging.getLogger(__name__)

FOLDER = "tracking"
"""The journal's place in a run's folder."""


@dataclass(frozen=True)
class MLflowConfig:
    """Where runs go, and how long they may be held up for it."""

    tracking_uri: str
    experiment_name: str = "oar_lightning"
    run_name: str | None = None
    artifact_location: str | None = None
    tags: Mapping[str, object] = field(default_factory=dict)
    max_stall_s: float = 5.0
    deliver_every_s: float = 2.0
    offline_start: bool = False

    def __post_init__(self) -> None:
        for name, lowest in (("max_stall_s", 0.0), ("deliver_every_s", 0.1)):
            if not getattr(self, name) >= lowest:
                raise ValueError(f"logger.{name} is in seconds and must be at least {lowest}, got {getattr(self, name)}")


class DurableMLFlowLogger(Logger):
    """Logs to the journal in `folder`, a folder of the run's, and from there to MLflow.

    `run_id` goes on with a run of the store, `resume` with the journal that is there. Other ranks than 0 do nothing. Call
    `start` before, `close` after.
    """

    def __init__(self, config: MLflowConfig, folder: Path, run_id: str | None = None, resume: bool = False) -> None:
        super().__init__()
        self.config = config
        self.folder = folder
        self.seconds = 0.0
        """What the calls have taken of the caller's time."""
        self.delivery_cpu_s = 0.0
        """What delivery has taken of a background thread's processor time; known after `close`."""
        self._resume = (run_id, resume)
        self._journal: Journal | None = None
        self._delivery: Delivery | None = None
        self._courier: Courier | None = None

    @rank_zero_only
    def check(self) -> None:
        """Ask a server whether it is there, before anything slow is done.

        Raises:
            ConfigError: where it is not and `offline_start` is off.
        """
        if self.config.offline_start or local_database(self.config.tracking_uri) is not None:
            return
        try:
            connect(self.config.tracking_uri)
        except Exception as error:
            raise ConfigError(unreachable(self.config.tracking_uri, error)) from error

    @rank_zero_only
    def start(self) -> None:
        """Open the journal, make the MLflow run, or find it again.

        Raises:
            ConfigError: where the store cannot be reached and `offline_start` is off, or the journal is in use.
        """
        run_id, resume = self._resume
        self._journal = open_journal(self.folder)
        if not resume and self._journal.end.records:
            self._journal.close()
            set_aside(self.folder)
            self._journal = open_journal(self.folder)
        fresh = not self._journal.end.records
        if fresh:
            self.record("run", **self._first_record(run_id))
        self._delivery = Delivery(self.folder, self._tracking_uri)
        if not self.config.offline_start:
            try:
                self._delivery.open_run()
            except Exception as error:
                self._journal.close()
                if fresh:
                    shutil.rmtree(self.folder)  # else task=sync would make a run of it that never was
                raise ConfigError(unreachable(self.config.tracking_uri, error)) from error
        self._courier = Courier(self._delivery, self.config.deliver_every_s)
        self._courier.start()
        if self.config.offline_start and not self._courier.flush(self.config.max_stall_s):
            log.warning("logger.tracking_uri=%s cannot be reached yet; recording in %s", self._tracking_uri, self.folder)
        atexit.register(self.close)

    def _first_record(self, run_id: str | None) -> dict[str, Any]:
        location = self.config.artifact_location or local_artifacts(self._tracking_uri)
        tags = resolve_tags({str(key): str(value) for key, value in self.config.tags.items()})
        return {
            "tracking_uri": self._tracking_uri,
            "experiment": self.config.experiment_name,
            "artifact_location": location,
            "run_name": self.config.run_name,
            "tags": {**tags, JOURNAL_TAG: uuid.uuid4().hex},
            "run_id": run_id,
        }

    @property
    def _tracking_uri(self) -> str:
        """With an absolute path, which `task=sync` understands in any folder."""
        database = local_database(self.config.tracking_uri)
        return self.config.tracking_uri if database is None else f"sqlite:///{database.absolute()}"

    def record(self, kind: str, **content: Any) -> int:
        """Append one record and return its time in ms."""
        assert self._journal is not None, "start() comes first, close() last"
        started = time.perf_counter()
        time_ms = self._journal.append(kind, **content)
        self.seconds += time.perf_counter() - started
        return time_ms

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {re.sub(r"[^a-zA-Z0-9_/. -]+", "", key): float(value) for key, value in metrics.items()}
        self.record("metrics", step=step or 0, values=values)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.record("params", values={str(key): str(value) for key, value in dict(params).items()})

    @rank_zero_only
    def set_tags(self, tags: Mapping[str, str]) -> None:
        self.record("tags", values={str(key): str(value) for key, value in tags.items()})

    @rank_zero_only
    def log_file(self, path: Path, folder: str, table: bool = False) -> None:
        """Log a file of the run's folder under `folder`; it must stay there, and be replaced as a whole or not at all."""
        relative = path.absolute().relative_to(self.folder.parent.absolute())
        self.record("table" if table else "artifact", path=str(relative), folder=folder)

    def set_status(self, status: str) -> int:
        """Record the run's status; gives the time in ms that the record bears. Rank 0 only."""
        return self.record("status", status=status)

    @rank_zero_only
    def close(self, status: str | None = None) -> None:
        """Record how the run ended, where that is known, and deliver what is left, for `max_stall_s` at most.

        Later calls do nothing. Lightning's `finalize`, which comes before the policy is exported, is not the end.
        """
        if self._journal is None or self._courier is None:
            return
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
            log.warning(
                "%d records could not be delivered to %s (%s); they are in %s. When it is back: "
                "python -m oar_lightning task=sync sync.folder=%s",
                *(left, courier.delivery.tracking_uri, courier.problem or "not in time", self.folder, self.folder.parent),
            )
        log.info(
            "logging took %.2f s of the run's time, and %.2f s of a background thread's processor time",
            *(self.seconds, self.delivery_cpu_s),
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> MlflowClient:
        """The client, for what the logger does not do. Unlike the logger's, its calls fail where the server is away."""
        assert self._delivery is not None, "start() comes first"
        return self._delivery.client

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None on other ranks, and until the run could be made."""
        return self._delivery.state.run_id if self._delivery else None

    @property
    def name(self) -> str:
        return self.config.experiment_name

    @property
    def version(self) -> str | None:
        return self.run_id


class Courier(threading.Thread):
    """Delivers every `every_s` seconds; while the store is away, less and less often, up to once a minute."""

    LONGEST_PAUSE_S = 60.0

    def __init__(self, delivery: Delivery, every_s: float) -> None:
        super().__init__(name="mlflow-courier", daemon=True)
        self.delivery = delivery
        self.every_s = every_s
        self.problem: Exception | None = None
        """Why the last attempt failed."""
        self.cpu_s = 0.0
        self._asked = self._answered = 0
        self._stopping = False
        self._changed = threading.Condition()

    def run(self) -> None:
        pause = self.every_s
        while not self._stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered or self._stopping, pause)
                asked = self._asked
            self._attempt()
            pause = self.every_s if self.problem is None else min(2 * pause, self.LONGEST_PAUSE_S)
            with self._changed:
                self._answered = asked
                self._changed.notify_all()

    def _attempt(self) -> None:
        started = time.thread_time()
        try:
            delivered = self.delivery.deliver()
        except Exception as error:  # whatever it is, training goes on and the journal keeps the records
            if self.problem is None:
                log.warning("MLflow at %s takes no records, which are kept: %s", self.delivery.tracking_uri, short(error))
            self.problem = error
        else:
            if self.problem is not None:
                log.info("MLflow is back; delivered %d records", delivered)
            self.problem = None
        self.cpu_s += time.thread_time() - started

    def flush(self, timeout_s: float) -> bool:
        """Have everything recorded so far delivered, waiting for one attempt and `timeout_s` at most; whether it was."""
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            answered = self._changed.wait_for(lambda: self._answered >= mine, timeout_s)
        return answered and self.problem is None

    def stop(self) -> None:
        """End after the attempt in progress, which is not waited for."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()


def open_journal(folder: Path) -> Journal:
    """The journal for writing.

    Raises:
        ConfigError: where another process writes it.
    """
    try:
        return Journal(folder)
    except JournalInUse as error:
        raise ConfigError(f"{error}; wait for it to end, or start a run of its own") from error


def set_aside(folder: Path) -> None:
    """Make room for a new run's journal; an earlier run's keeps its records under a name with a number."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(aside)


def unreachable(tracking_uri: str, error: Exception) -> str:
    return (
        f"logger.tracking_uri={tracking_uri} cannot be used ({short(error)}); start the server or correct the address, "
        "record now and deliver later with logger.offline_start=true, or log nothing with logger=none"
    )


def short(error: Exception) -> str:
    """An error in one line; of a long one, which often wraps others, the beginning and the cause at its end."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-195:]}"
