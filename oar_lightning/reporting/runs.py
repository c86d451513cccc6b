"""Reads the runs of a study and their curves from MLflow into plain data. No other file of this room reads from MLflow."""

from __future__ import annotations

import dataclasses
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import shown_words
from oar_lightning.tracking.history import metric_history, resumptions
from oar_lightning.tracking.renamed import by_current_name

log = logging.getLogger(__name__)

PARENT = "mlflow.parentRunId"
SWEEP_COMMAND = "sweep_command"
LARGEST = 1e300
"""MLflow keeps an infinite value as about 1.8e308."""


@dataclass(frozen=True)
class ReportConfig:
    """The runs of a report (those of a sweep, given ones, those that match an MLflow filter, or those that an earlier report
    kept), and how to compare them.

    Args:
        sweep: name of the sweep.
        runs: MLflow run ids.
        filter: a filter of MLflow's `search_runs`.
        csv: a `runs.csv` of an earlier report; `curves.csv.gz` beside it is read, too. No MLflow store is needed.
        name: of the study's folder; null: the sweep's name, or that of the folder of `csv`.
        metric: by which runs are compared; null: `objective`, else the sampled accuracy on the evaluation set that is the first
            by name.
        baseline: label of the arm with which the others are paired; null: the arm without token-level credit.
        folder: the folder of all studies.
    """

    sweep: str | None = None
    runs: tuple[str, ...] = ()
    filter: str | None = None
    csv: str | None = None
    name: str | None = None
    metric: str | None = None
    baseline: str | None = None
    folder: str = "reports"

    def __post_init__(self) -> None:
        given = [key for key in ("sweep", "runs", "filter", "csv") if getattr(self, key)]
        if len(given) != 1:
            raise ConfigError(
                f"task=report needs one of sweep=<name>, report.runs=[<run id>,...], report.filter=<MLflow filter> and "
                f"report.csv=<a report's runs.csv>, got {' and '.join(given) or 'none'}"
            )
        if self.sweep is None and self.csv is None and not self.name:
            raise ConfigError(f"report.{given[0]} needs report.name=<name> as well: it names the study's folder")
        if "/" in self.study:
            raise ConfigError(
                f"report.name={self.study} names one folder of {self.folder} and cannot hold a slash; leave it out"
            )

    @property
    def study(self) -> str:
        folder = re.sub(r"^\d{4}-\d\d-\d\d-", "", Path(self.csv).absolute().parent.name) if self.csv else None
        return str(self.name or self.sweep or folder)


@dataclass(frozen=True)
class RunRecord:
    """One MLflow run. `state` is complete, failed, pruned, killed or running; `started` in ms since 1970."""

    run_id: str
    name: str
    state: str
    reason: str
    started: int
    duration_s: float
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def given_up(self) -> bool:
        """Whether its training fell apart, and no fault of a machine or a program ended it."""
        return self.state == "failed" and self.reason.startswith("Diverged: ")

    @property
    def overrides(self) -> list[str]:
        """The words of the run's command."""
        return words(self.tags.get("overrides", ""))

    @property
    def seed(self) -> str:
        return self.tags.get("seed", self.params.get("seed", ""))


def ended(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Those that are complete or were given up. Of others that failed, which are to be made again, it is told."""
    runs = list(runs)
    for run in runs:
        if run.state == "failed" and not run.given_up:
            log.warning("left out, to be run again with hydra.sweeper.retry_failed=true: %s, %s", run.name, run.reason)
    return [run for run in runs if run.state == "complete" or run.given_up]


def words(text: str) -> list[str]:
    """The words of a command as a shell reads them."""
    try:
        return shlex.split(text)
    except ValueError:  # an unpaired quote, in the tag of an older version that did not quote words
        return text.split()


@dataclass(frozen=True)
class Curve:
    """A metric over optimizer steps in ascending order, one value a step."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


Curves = Mapping[str, Mapping[str, Curve]]
"""Metric -> run id -> curve."""


def read_runs(client: MlflowClient, experiment: str, config: ReportConfig) -> tuple[list[RunRecord], list[RunRecord]]:
    """The sweep's parent runs (none for given runs and filters) and the runs, each sorted by start. A sweep's trials have its
    command as the tag `SWEEP_COMMAND`.

    Raises:
        ConfigError: for a missing experiment, sweep or run, with the existing ones; for a filter that MLflow cannot parse.
    """
    if config.runs:
        return [], with_sweep_commands(client, _by_start(client, (_get_run(client, run_id) for run_id in config.runs)))
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        known = ", ".join(sorted(e.name for e in client.search_experiments())) or "none"
        raise ConfigError(f"logger.experiment_name={experiment}: no such experiment in this store; there are: {known}")
    if config.filter is not None:
        runs = [run for run in _search(client, stored.experiment_id, config.filter) if run.data.tags.get("kind") != "sweep"]
        if not runs:
            raise ConfigError(
                f"report.filter={config.filter} matches no run of experiment {experiment}; try it in the MLflow UI"
            )
        return [], with_sweep_commands(client, _by_start(client, runs))
    sweeps = _search(client, stored.experiment_id, "tags.kind = 'sweep'")
    parents = [run for run in sweeps if run.data.tags.get("sweep") == config.sweep]
    if not parents:
        known = ", ".join(sorted({run.data.tags.get("sweep", run.info.run_name) for run in sweeps})) or "none"
        raise ConfigError(
            f"sweep={config.sweep}: no such sweep in experiment {experiment}; there are: {known} "
            "(runs without a sweep: report.filter or report.runs)"
        )
    children = [
        run for parent in parents for run in _search(client, stored.experiment_id, f"tags.`{PARENT}` = '{parent.info.run_id}'")
    ]
    if not children:
        raise ConfigError(f"sweep={config.sweep} has no trials yet; wait for the first, or start the sweep again")
    return _by_start(client, parents), with_sweep_commands(client, _by_start(client, children))


def with_sweep_commands(client: MlflowClient, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs; those that are trials with the words of their sweep's command, the study's name among them."""
    commands: dict[str, str] = {}
    for parent in dict.fromkeys(run.tags[PARENT] for run in runs if PARENT in run.tags):
        try:
            sweep = record(client.get_run(parent))
        except MlflowException:  # deleted
            continue
        if sweep.tags.get("kind") != "sweep":
            continue
        name = f"hydra.sweeper.study_name={sweep.tags.get('sweep')}"
        given = sweep.overrides or [f"+sweeps={sweep.tags.get('sweep')}"]
        named = any(word.startswith("hydra.sweeper.study_name=") for word in given)
        commands[parent] = shown_words(given if named else [*given, name])  # older sweeps have kept theirs as they were
    told = {parent: {SWEEP_COMMAND: command} for parent, command in commands.items()}
    return [dataclasses.replace(run, tags={**run.tags, **told.get(run.tags.get(PARENT, ""), {})}) for run in runs]


def read_curves(client: MlflowClient, runs: Sequence[RunRecord], metrics: Iterable[str]) -> dict[str, dict[str, Curve]]:
    """Metric -> run id -> curve of the finite points; runs without such points are left out."""
    curves: dict[str, dict[str, Curve]] = {}
    for metric in metrics:
        for run in runs:
            if metric not in run.metrics:
                continue  # saves a call
            last = {p.step: p.value for p in metric_history(client, run.run_id, metric, run.tags)}  # by step and time
            usable = [(step, value) for step, value in last.items() if np.isfinite(value) and abs(value) < LARGEST]
            if usable:
                steps, values = np.array(usable, dtype=float).T
                curves.setdefault(metric, {})[run.run_id] = Curve(steps, values)
    return curves


def record(run: Run, metrics: Mapping[str, float] | None = None) -> RunRecord:
    """A run as plain data, with MLflow's last values unless others are given. Its state is that of the trial, but complete only
    where MLflow has finished the run, too."""
    metrics = by_current_name(run.data.metrics) if metrics is None else metrics
    tags = dict(run.data.tags)
    by_status = {"FINISHED": "complete", "SCHEDULED": "running"}.get(run.info.status, run.info.status.lower())
    state = tags.get("trial_state", by_status)
    state = by_status if state == "complete" else state
    reason = tags.get("trial_reason", "")
    if state == "running" and not reason:
        reason = "still running, or killed without a trace"
    wall_s = ((run.info.end_time or run.info.start_time) - run.info.start_time) / 1000
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name,
        state=state,
        reason=reason,
        started=run.info.start_time,
        duration_s=float(metrics.get("time/total_s", wall_s)),
        tags=tags,
        params=dict(run.data.params),
        metrics=metrics,
    )


def _by_start(client: MlflowClient, runs: Iterable[Run]) -> list[RunRecord]:
    return sorted((current(client, run) for run in runs), key=lambda r: (r.started, r.run_id))


def current(client: MlflowClient, run: Run) -> RunRecord:
    """The run as plain data with its last values. MLflow's are those of the largest step, which a run that went back to an
    earlier checkpoint may have left behind."""
    found = record(run)
    if not resumptions(found.tags):
        return found
    points = {metric: metric_history(client, found.run_id, metric, found.tags) for metric in found.metrics}
    return record(run, {metric: of_metric[-1].value for metric, of_metric in points.items() if of_metric})


def _get_run(client: MlflowClient, run_id: str) -> Run:
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        raise ConfigError(f"report.runs names {run_id}: {error.message}; copy the id from the run's page in the UI") from error


def _search(client: MlflowClient, experiment_id: str, query: str) -> list[Run]:
    runs: list[Run] = []
    token = None
    while True:
        try:
            page = client.search_runs([experiment_id], query, max_results=1000, page_token=token)
        except MlflowException as error:
            raise ConfigError(f"report.filter={query}: {error.message}") from error
        runs += page
        token = page.token
        if not token:
            return runs
