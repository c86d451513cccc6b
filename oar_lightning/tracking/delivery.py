"""Delivers a run's journal to MLflow, completely and, but for files that cannot be uploaded yet, in order; delivering a record
twice changes nothing.

Metrics carry the time at which they were recorded, and MLflow's databases keep only one point of the same key, step, time and
value. Parameters, tags, artifacts and the status are set, not added. A crash after a delivery that was not yet saved in the
state thus repeats the delivery without harm. The MLflow run is found again by its tag `journal`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException

from oar_lightning.tracking.batches import MAX_METRICS, batches, divided
from oar_lightning.tracking.headline import headline
from oar_lightning.tracking.journal import JOURNAL, Record, State, keep_aside, put_aside, read_records, undelivered
from oar_lightning.tracking.mlflow_client import connect, experiment_id

log = logging.getLogger(__name__)

REFUSED = "refused.jsonl"
UPLOADS = ("artifact", "table", "register")
"""Records of files. Those that cannot be uploaded are put aside, and block none that comes after them."""

JOURNAL_TAG = "journal"

MAX_PARAMS = 100
"""MLflow's limit for one request."""

LISTED = "mlflow.loggedArtifacts"
"""The tag by which the UI knows tables."""
MAX_TAG_CHARACTERS = 5000
"""Of older servers; newer ones take 8,000, and cut what is longer."""

MAX_PARAM_CHARACTERS = 6000
"""MLflow's limit for the value of a parameter."""


class Refused(Exception):
    """Raised for a record that can never be delivered."""


class NotUploaded(Exception):
    """Raised where files could not be uploaded, and all other records could be delivered."""


class Delivery:
    """Delivers the journal in `folder`, whose parent is the run's folder; `tracking_uri` replaces the recorded one.

    The first record describes the run: ``tracking_uri``, ``experiment``, ``artifact_location``, ``run_name``, ``tags``, and
    ``run_id`` (None unless the journal continues an existing run).

    Raises:
        ValueError: for a journal without that record.
    """

    def __init__(self, folder: Path, tracking_uri: str | None = None) -> None:
        self.folder = folder
        self.state = State.load(folder)
        first = next(read_records(folder / JOURNAL), None)
        if first is None:
            raise ValueError(f"{folder / JOURNAL} is empty: the run ended before it recorded anything")
        self.run: Record = first[0]
        self.tracking_uri = tracking_uri or str(self.run["tracking_uri"])
        self._client: MlflowClient | None = None
        self._send: dict[str, Callable[[str, Record], None]] = {
            "params": self._params,
            "tags": self._tags,
            "artifact": self._artifact,
            "table": self._table,
            "datasets": self._datasets,
            "register": self._register,
            "status": self._status,
        }

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self.tracking_uri)
        return self._client

    def open_run(self) -> str:
        """The MLflow run's id; the run is created where it does not exist yet.

        Raises:
            Exception: any error of MLflow's client, e.g. where the store cannot be reached or does not have the run.
        """
        run_id = self.state.run_id
        if run_id is None:
            run_id = self._find_or_create()
            self._save_state(dataclasses.replace(self.state, run_id=run_id))
        return str(self.client.get_run(run_id).info.run_id)

    def deliver(self) -> int:
        """Deliver all records that are not delivered yet; returns their number.

        Raises:
            NotUploaded: where files could not be uploaded; all other records are delivered.
            Exception: any error of MLflow's client, e.g. where the store cannot be reached; earlier records are delivered.
        """
        delivered, problem = self._deliver_put_aside()
        for records, end in batches(read_records(self.folder / JOURNAL, self.state.position)):
            run_id = self.state.run_id or self.open_run()
            try:
                self._deliver_or_refuse(run_id, records)
                delivered += len(records)
            except Exception as error:
                if records[0]["kind"] not in UPLOADS or not self._answers(run_id):
                    raise
                # before the state is saved: after a kill in between it is delivered twice, which changes nothing
                keep_aside(self.folder, [*put_aside(self.folder), records[0]])
                problem = error
            self._save_state(State(end.records, end.bytes, run_id))
        if problem is not None:
            raise NotUploaded(f"{len(put_aside(self.folder))} files or folders cannot be uploaded ({problem})") from problem
        return delivered

    def _answers(self, run_id: str) -> bool:
        try:
            return bool(self.client.get_run(run_id))
        except Exception:  # of whatever kind
            return False

    def _deliver_put_aside(self) -> tuple[int, Exception | None]:
        """Upload what was put aside, as far as that can be; returns how much was, and why no more."""
        records, run_id = put_aside(self.folder), str(self.state.run_id)
        left: list[Record] = []
        problem = None
        for place, record in enumerate(records):
            try:
                self._deliver_or_refuse(run_id, [record])
            except Exception as error:
                problem = error
                left.append(record)
                if not self._answers(run_id):
                    left += records[place + 1 :]
                    break
        if len(left) < len(records):
            keep_aside(self.folder, left)
        return len(records) - len(left), problem

    def _save_state(self, state: State) -> None:
        self.state = state
        state.save(self.folder)

    def left(self) -> int:
        """Number of records that are not delivered yet."""
        return undelivered(self.folder)

    def refused(self) -> int:
        """Number of records that MLflow has refused."""
        path = self.folder / REFUSED
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def _find_or_create(self) -> str:
        """The id of the journal's run; an earlier delivery may have created it without saving its id."""
        run, client = self.run, self.client
        if run["run_id"] is not None:
            return str(run["run_id"])
        experiment = experiment_id(client, run["experiment"], run["artifact_location"])
        existing = client.search_runs([experiment], f"tags.{JOURNAL_TAG} = '{run['tags'][JOURNAL_TAG]}'", ViewType.ALL)
        if existing:
            return str(existing[0].info.run_id)
        return str(client.create_run(experiment, run["time"], run["tags"], run["run_name"]).info.run_id)

    def _deliver_or_refuse(self, run_id: str, records: list[Record]) -> None:
        """Deliver a batch. A record that MLflow will never accept goes to ``refused.jsonl`` and does not block the rest."""
        try:
            if records[0]["kind"] == "metrics":
                self._metrics(run_id, records)
            elif records[0]["kind"] != "run":
                self._send[records[0]["kind"]](run_id, records[0])
        except (Refused, MlflowException, ValueError, LookupError, TypeError) as error:
            if not self._is_final(error, run_id):
                raise
            if parts := divided(records):
                for record in parts:
                    self._deliver_or_refuse(run_id, [record])
                return
            log.warning("MLflow refuses record %d (%s), kept in %s: %s", records[0]["n"], records[0]["kind"], REFUSED, error)
            with (self.folder / REFUSED).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"reason": str(error), "record": records[0]}, ensure_ascii=False) + "\n")

    def _is_final(self, error: Exception, run_id: str) -> bool:
        """Whether the record is at fault. MLflow reports a deleted run by the same error, but it may be restored."""
        if isinstance(error, MlflowException):
            bad = error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
            return bad and self.client.get_run(run_id).info.lifecycle_stage == "active"
        return not isinstance(error, OSError)  # as an answer that is no JSON is, which a proxy may give for the server

    def _metrics(self, run_id: str, records: list[Record]) -> None:
        points = [Metric(key, value, r["time"], r["step"]) for r in records for key, value in shown(r["values"]).items()]
        for start in range(0, len(points), MAX_METRICS):
            self.client.log_batch(run_id, metrics=points[start : start + MAX_METRICS])

    def _params(self, run_id: str, record: Record) -> None:
        present = self.client.get_run(run_id).data.params
        values = {key: value[:MAX_PARAM_CHARACTERS] for key, value in record["values"].items()}
        changed = {k: (present[k], v) for k, v in values.items() if present.get(k, v) != v}
        if changed:
            log.warning("MLflow keeps the parameters of the run's first start; changed since: %s", changed)
        new = [Param(k, v) for k, v in values.items() if k not in present]
        for start in range(0, len(new), MAX_PARAMS):
            self.client.log_batch(run_id, params=new[start : start + MAX_PARAMS])

    def _tags(self, run_id: str, record: Record) -> None:
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in record["values"].items()])

    def _artifact(self, run_id: str, record: Record) -> None:
        path = self.folder.parent / record["path"]
        if not path.is_file():
            raise Refused(f"{path} is no longer there")
        self.client.log_artifact(run_id, str(path), record["folder"] or None)

    def _table(self, run_id: str, record: Record) -> None:
        """An artifact that the UI lists as a table: the newest ones, as far as a tag can name them."""
        self._artifact(run_id, record)
        listed = _list_of(self.client.get_run(run_id).data.tags.get(LISTED, "[]"))
        entry = {"path": f"{record['folder']}/{Path(record['path']).name}".lstrip("/"), "type": "table"}
        if entry in listed:
            return
        listed.append(entry)
        while len(text := json.dumps(listed)) > MAX_TAG_CHARACTERS and len(listed) > 1:
            del listed[0]
        self.client.set_tag(run_id, LISTED, text)

    def _datasets(self, run_id: str, record: Record) -> None:
        inputs = []
        for dataset in record["datasets"]:
            fields = {name: value for name, value in dataset.items() if name != "context"}
            inputs.append(DatasetInput(Dataset(**fields), [InputTag("mlflow.data.context", dataset["context"])]))
        self.client.log_inputs(run_id, inputs)

    def _register(self, run_id: str, record: Record) -> None:
        """Upload a policy's folder, and make it a version of a registered model, unless it is one already."""
        name, source = record["model"], f"runs:/{run_id}/{record['folder']}"
        if not Path(record["path"]).is_dir():
            raise Refused(f"{record['path']} is no longer there")
        versions = self.client.search_model_versions(f"run_id = '{run_id}'")
        if any((version.name, version.source) == (name, source) for version in versions):
            return
        self.client.log_artifacts(run_id, record["path"], record["folder"])
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version = self.client.create_model_version(name, source, run_id)
        log.info("registered the policy as version %s of %s", version.version, name)

    def _status(self, run_id: str, record: Record) -> None:
        if record["status"] == "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        else:
            self.client.set_terminated(run_id, record["status"], record["time"])


def _list_of(text: str) -> list[Any]:
    """A tag's list; a new one where the tag was cut, as MLflow cuts what is too long."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as the UI has them: with copies of the main ones, the copies first."""
    return {**headline(metrics), **metrics}
