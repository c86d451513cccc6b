"""A Lightning logger for MLflow that works while the server is away: records go to a journal first and are delivered later.

Every call appends a record to the journal in the run's folder and returns; a thread delivers the records. ``task=sync``
delivers what a killed run or an unreachable server left undelivered.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_path
from oar_lightning.common.paths import local_artifacts, local_database
from oar_lightning.common.ranges import Rule, checked
from oar_lightning.tracking.courier import Courier, short
from oar_lightning.tracking.journal import Journal, JournalInUse

if TYPE_CHECKING:  # MLflow takes seconds to import, and runs with logger=none do without it
    from mlflow import MlflowClient

    from oar_lightning.tracking.delivery import Delivery
    from oar_lightning.tracking.system_metrics import SystemMetrics

log = logging.getLogger(__name__)

FOLDER = "tracking"
"""The journal's folder in a run's folder."""

UPLOAD_S = 3600.0
"""Longest wait for the upload of a policy. Requests that hang end much earlier by themselves."""


@checked(
    "logger",
    Rule(
        lambda tracking_uri: "://" in tracking_uri or tracking_uri == "databricks",
        "logger.tracking_uri must be sqlite:///<file> or the address of a server, http://<host>:<port>, got {tracking_uri!r}",
    ),
    Rule(
        lambda register_as: register_as is None or (register_as.strip() and not set("/:") & set(register_as)),
        "logger.register_as={register_as} names a model of the registry: it cannot be empty nor hold / or :",
    ),
)
@dataclass(frozen=True)
class MLflowConfig:
    """The MLflow store and names of runs, and the limits on the time that logging takes.

    Args:
        max_stall_s: seconds for which starting and closing wait for a delivery.
        deliver_every_s: seconds between deliveries.
        offline_start: start without asking the server, and deliver later.
        run_name: null: the experiment's name, what the command sets, and the seed.
        register_as: a model of MLflow's registry, of which the exported policy becomes a new version.
        system_metrics: log the load of the machine; needs psutil.
    """

    tracking_uri: str
    experiment_name: str = "oar_lightning"
    run_name: str | None = None
    artifact_location: str | None = None
    tags: Mapping[str, object] = field(default_factory=dict)
    max_stall_s: Annotated[float, Interval(ge=0), "a number of seconds"] = 5.0
    deliver_every_s: Annotated[float, Interval(ge=0.1), "a number of seconds"] = 2.0
    offline_start: bool = False
    register_as: str | None = None
    system_metrics: bool = False


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
        """Check that the server answers and has what is asked of it, before slow work begins.

        Raises:
            ConfigError: where it does not and `offline_start` is off, or psutil is missing.
        """
        if self.config.system_metrics and importlib.util.find_spec("psutil") is None:
            raise ConfigError("logger.system_metrics=true needs psutil: pip install psutil, or leave logger.system_metrics out")
        database = local_database(self.config.tracking_uri)
        if database is not None:
            output_path(str(database), "logger.tracking_uri")
        if self.config.offline_start or database is not None:
            return
        from oar_lightning.tracking.mlflow_client import connect

        try:
            client = connect(self.config.tracking_uri)
        except Exception as error:
            raise ConfigError(unreachable(self.config.tracking_uri, error)) from error
        if self.config.register_as is not None:
            try:
                client.search_registered_models(max_results=1)
            except Exception as error:
                raise ConfigError(
                    f"logger.register_as={self.config.register_as}: {self.config.tracking_uri} has no model registry that "
                    f"answers ({short(error)}); leave logger.register_as out, or set MLFLOW_REGISTRY_URI"
                ) from error

    @rank_zero_only
    def start(self) -> None:
        """Open the journal, and create the MLflow run or find it again.

        Raises:
            ConfigError: where the store cannot be reached and `offline_start` is off, or the journal is in use.
        """
        from oar_lightning.tracking.delivery import Delivery

        run_id, resume = self._resume
        self._journal = open_journal(self.folder)
        if not resume and self._journal.end.records:
            self._journal.close()
            archive(self.folder)
            self._journal = open_journal(self.folder)
        is_new = not self._journal.end.records
        if is_new:
            self.record("run", **self._first_record(run_id))
        self._delivery = Delivery(self.folder, self._tracking_uri)
        if not self.config.offline_start:
            try:
                self._delivery.open_run()
            except Exception as error:
                self._journal.close()
                if is_new:
                    shutil.rmtree(self.folder)  # else task=sync would create a run that never started
                raise ConfigError(unreachable(self.config.tracking_uri, error)) from error
        self._courier = Courier(self._delivery, self.config.deliver_every_s)
        self._courier.start()
        if self.config.offline_start and not self._courier.flush(self.config.max_stall_s):
            log.warning("logger.tracking_uri=%s cannot be reached yet; recording in %s", self._tracking_uri, self.folder)
        if self.config.system_metrics:
            from oar_lightning.tracking.system_metrics import SystemMetrics  # needs psutil

            self._monitor = SystemMetrics(self.log_metrics)
            self._monitor.start()
        atexit.register(self.close)

    def _first_record(self, run_id: str | None) -> dict[str, Any]:
        from mlflow.tracking.context.registry import resolve_tags

        from oar_lightning.tracking.delivery import JOURNAL_TAG

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
        """The tracking URI, with an absolute path, so that `task=sync` can run in any folder."""
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


def unreachable(tracking_uri: str, error: Exception) -> str:
    """The message for a store that cannot be used."""
    return (
        f"logger.tracking_uri={tracking_uri} cannot be used ({short(error)}); start the server or correct the address, "
        "record now and deliver later with logger.offline_start=true, or log nothing with logger=none"
    )
