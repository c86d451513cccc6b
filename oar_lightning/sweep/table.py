"""Tables of a study: results, which a repetition with the same seeds reproduces, and measured times."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from oar_lightning.common.jsonl import table_json
from oar_lightning.sweep.samplers import RETRY_OF
from oar_lightning.tracking.renamed import by_current_name

STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "pruned",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}

INTERVAL = ("objective", "objective_low", "objective_high")

Row = dict[str, Any]


def results_table(trials: Sequence[FrozenTrial], objectives: Sequence[str]) -> list[Row]:
    """One row a trial: number, state, swept parameters, objectives, interval, reason. It holds no times, unless an objective is
    one."""
    names = list(dict.fromkeys([*INTERVAL, *objectives]))
    retries = {RETRY_OF} if any(RETRY_OF in trial.user_attrs for trial in trials) else set()
    rows = []
    for trial in trials:
        metrics = by_current_name(trial.user_attrs.get("metrics", {}))
        row = {"trial": trial.number, "state": STATES[trial.state], **trial.user_attrs.get("swept", {})}
        row |= {name: metrics.get(name) for name in names}
        rows.append(row | {key: trial.user_attrs.get(key, "") for key in ("reason", *retries)})
    return rows


def times_table(trials: Sequence[FrozenTrial]) -> list[Row]:
    """One row a trial: number of starts, seconds of the fit and of each phase, and the id of its MLflow run."""
    rows = []
    for trial in trials:
        metrics = by_current_name(trial.user_attrs.get("metrics", {}))
        seconds = {name: value for name, value in metrics.items() if name.startswith("time/")}
        attempts = trial.user_attrs.get("attempts", 0)
        rows.append({"trial": trial.number, "attempts": attempts, "run_id": trial.user_attrs.get("run_id"), **seconds})
    return rows


def columns(rows: Sequence[Row]) -> list[str]:
    """All keys, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    names = columns(rows)
    return table_json(names, [[row.get(name) for name in names] for row in rows])
