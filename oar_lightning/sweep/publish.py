"""Publishes a study in MLflow: one parent run with the trials as children, and tables and figures as artifacts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from optuna.trial import FrozenTrial, TrialState

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import without_credentials, without_users
from oar_lightning.common.locks import FileLock
from oar_lightning.common.messages import first_line
from oar_lightning.sweep.figures import draw_figures
from oar_lightning.sweep.study import PUBLISH_LOCK, SweepStudy
from oar_lightning.sweep.table import STATES, as_csv, as_json, results_table, times_table
from oar_lightning.sweep.trial import read_run_id
from oar_lightning.tracking.mlflow_client import connect, experiment_id

log = logging.getLogger(__name__)

STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED", "killed": "KILLED"}
"""State of a trial (tag trial_state) -> status of its MLflow run."""


@dataclass(frozen=True)
class Store:
    """The MLflow store and experiment of the runs."""

    tracking_uri: str
    experiment: str
    artifact_location: str | None


class Folder:
    """Publishes without MLflow: writes the tables and figures to ``study/`` in the study's folder."""

    parent_run_id: str | None = None

    def update(self, study: SweepStudy) -> None:
        with FileLock(study.folder / PUBLISH_LOCK):
            write_files(study)

    def close(self, study: SweepStudy, status: str) -> None:
        self.update(study)

    def discard(self) -> None:
        """Nothing is left: the files lie in the study's folder."""


class Mlflow:
    """Publishes to the study's parent run, which is found again by the study's id. A repeated `update` changes only what
    differs.

    Raises:
        ConfigError: where the tracking server cannot be reached when the sweep starts, or its experiment was deleted. Later
            the server may be away: the next update, or the next start of the sweep, publishes what is missing.
    """

    def __init__(self, store: Store, study: SweepStudy, tags: Mapping[str, str]) -> None:
        try:
            self.client = connect(store.tracking_uri)
            # processes that start at the same time must create only one experiment and one parent run
            with FileLock(study.storage.path.with_name(".mlflow.lock")):
                self.experiment_id = experiment_id(self.client, store.experiment, store.artifact_location)
                self.parent_run_id: str = self._parent(study, tags)
        except MlflowException as error:
            raise ConfigError(
                without_users(
                    f"logger.tracking_uri={store.tracking_uri} cannot be used ({first_line(error)}); start the server, or set "
                    "logger=none"
                )
            ) from error

    def update(self, study: SweepStudy) -> None:
        self._publish(study, "RUNNING")

    def close(self, study: SweepStudy, status: str) -> None:
        self._publish(study, status)

    def discard(self) -> None:
        """Delete the parent run. No trial has begun one."""
        try:
            self.client.delete_run(self.parent_run_id)
        except MlflowException as error:
            log.warning("the sweep's MLflow run %s could not be deleted (%s)", self.parent_run_id, first_line(error))

    def _publish(self, study: SweepStudy, status: str) -> None:
        with FileLock(study.folder / PUBLISH_LOCK):
            folder = write_files(study)
            try:
                self._children(study)
                self._summary(study)
                self.client.log_artifacts(self.parent_run_id, str(folder))
                if self.client.get_run(self.parent_run_id).info.status != status:
                    self.client.update_run(self.parent_run_id, status)
            except Exception as error:  # the client of a store of artifacts raises errors of its own, S3's among them
                log.warning(
                    "the study could not be shown in MLflow (%s); it will be after the next trial, or at the next start of "
                    "the sweep. Its tables are in %s",
                    without_users(first_line(error)),
                    folder,
                )

    def _parent(self, study: SweepStudy, tags: Mapping[str, str]) -> str:
        existing = self._search(f"tags.kind = 'sweep' and tags.study_id = '{study.identity}'")
        if existing:
            run_id = str(existing[0].info.run_id)
            for key in ("overrides", "git_revision"):  # of the last start, which may have more trials
                self.client.set_tag(run_id, key, tags[key])
            return run_id
        name = study.plan.name
        study_tags = {"kind": "sweep", "sweep": name, "study_id": study.identity, "study_database": str(study.storage.path)}
        run = self.client.create_run(self.experiment_id, run_name=name, tags={**tags, **study_tags})
        for key, value in {
            "objectives": " ".join(f"{o.direction} {o.metric}" for o in study.plan.objectives),
            "space": " ".join(without_credentials(f"{k}={v}") for k, v in study.plan.space.items()),
        }.items():
            self.client.log_param(run.info.run_id, key, value[:6000])
        return str(run.info.run_id)

    def _search(self, condition: str) -> list[Run]:
        return list(self.client.search_runs([self.experiment_id], condition, max_results=10_000))

    def _children(self, study: SweepStudy) -> None:
        """Set state and status of every child run: the study's for the last attempt of a trial, killed for earlier ones."""
        trials = {t.number: t for t in study.trials()}
        children = self._search(f"tags.`mlflow.parentRunId` = '{self.parent_run_id}'")
        started = {run.info.run_id: run.info.start_time for run in children}
        for run in children:
            trial = trials.get(int(run.data.tags.get("trial", "-1")))
            if trial is None:
                continue
            last = read_run_id(study.trial_folder(trial.number))
            if run.info.run_id != last:
                # a run younger than the last known one may belong to an attempt that is just starting
                if last in started and started[run.info.run_id] <= started[last]:
                    self._mark(run, "killed", f"interrupted before its first checkpoint; the trial was repeated in run {last}")
            elif trial.state.is_finished():
                self._mark(run, STATES[trial.state], trial.user_attrs.get("reason", ""))
            elif run.info.status == "KILLED":  # stopped by a signal; a RUNNING one may really be running
                self._mark(run, "killed", "interrupted; the trial goes on when the sweep is started again")

    def _mark(self, run: Run, state: str, reason: str) -> None:
        run_id, tags = run.info.run_id, run.data.tags
        if tags.get("trial_state") != state:
            self.client.set_tag(run_id, "trial_state", state)
        if tags.get("trial_reason", "") != reason:
            self.client.set_tag(run_id, "trial_reason", reason)
        if run.info.status != STATUS[state]:
            self.client.set_terminated(run_id, STATUS[state])

    def _summary(self, study: SweepStudy) -> None:
        """Log counts and, for a single objective, the best value as the parent's metrics over the number of finished
        trials."""
        counted, finished = study.counted(), study.finished()
        for state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED):
            count = sum(t.state == state for t in counted)
            self.client.log_metric(self.parent_run_id, f"trials/{STATES[state]}", count, step=len(finished))
        best = best_trial(study)
        if best is not None:
            self.client.log_metric(self.parent_run_id, "best_objective", best.values[0], step=len(finished))
            self.client.set_tag(self.parent_run_id, "best_trial", str(best.number))


def best_trial(study: SweepStudy) -> FrozenTrial | None:
    """The best complete trial of a study with one objective."""
    complete = [t for t in study.counted() if t.state == TrialState.COMPLETE]
    if not complete or len(study.plan.objectives) > 1:
        return None
    sign = 1 if study.plan.objectives[0].direction == "maximize" else -1
    return max(complete, key=lambda t: (sign * t.values[0], -t.number))


def write_files(study: SweepStudy) -> Path:
    """Write ``table.csv``, ``table.json``, ``times.csv`` and the figures to ``study/`` in the study's folder; returns it."""
    folder = study.folder / "study"
    folder.mkdir(parents=True, exist_ok=True)
    trials = study.trials()
    rows: list[dict[str, Any]] = results_table(trials, [o.metric for o in study.plan.objectives])
    texts = {"table.csv": as_csv(rows), "table.json": as_json(rows), "times.csv": as_csv(times_table(trials))}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    try:
        draw_figures(study.study, rows, study.plan.objectives, folder)
    except Exception:  # a failed figure must not end a long training
        log.exception("a figure of the study could not be drawn; the tables in %s are complete", folder)
    return folder
