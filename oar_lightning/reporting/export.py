"""runs.csv and curves.csv.gz: everything that a study's page is made of, written and read back."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from oar_lightning.common.config_check import ConfigError
from oar_lightning.reporting.bands import LAST_TENTH, last_tenth
from oar_lightning.reporting.factors import level, written
from oar_lightning.reporting.runs import SWEEP_COMMAND, Curve, Curves, RunRecord
from oar_lightning.reporting.settings import ENDS, EVALUATED_ON, SETTINGS, evaluated_on
from oar_lightning.reporting.study import Study
from oar_lightning.tracking.history import FORKED_AT
from oar_lightning.tracking.renamed import by_current_name

SECONDS = tuple(f"time/total_{phase}_s" for phase in ("cpu", "generate", "reward", "score", "logprobs", "update"))
TAGS = (
    *("git_revision", "python", "torch", "lightning", "transformers", "hardware", "parameters"),
    *(FORKED_AT, "task", "experiment", "scorer", SWEEP_COMMAND, "overrides"),
)
FIRST = ("run_id", "run", "trial", "state", "reason", "arm", "seed")
CURVES = "curves.csv.gz"


def runs_csv(study: Study, curves: Curves) -> str:
    """All runs of the study in full precision as CSV, those that count first. Columns that no run has are left out."""
    arms = {run.run_id: arm.label for arm in study.arms for run in arm.runs}
    results = dict.fromkeys([study.metric, *(f"{study.metric}_{end}" for end in ("low", "high")), *SECONDS, *ENDS])
    rows = []
    for run in study.all_runs:
        row: dict[str, object] = dict(zip(FIRST, _identity(run, arms.get(run.run_id, "")), strict=True))
        for key in study.factors:
            value = level(run, key)
            row[key] = written(value) if isinstance(value, float) else value
        row |= {"started": started(run), "duration_s": run.duration_s}
        row |= {name: run.metrics[name] for name in results if name in run.metrics}
        ends = {LAST_TENTH + metric: last_tenth(run, curves, metric) for metric in _metrics(study, curves)}
        row |= {name: end for name, end in ends.items() if end is not None}
        row |= {key: run.params[key] for key in SETTINGS if key in run.params and key not in study.factors}
        row |= {EVALUATED_ON: evaluated_on(run)}
        row |= {tag: run.tags[tag] for tag in TAGS if tag in run.tags and tag not in study.factors}
        rows.append({key: value for key, value in row.items() if value != "" or key in FIRST})
    used = {key for row in rows for key in row}
    order = [*FIRST, *study.factors, "started", "duration_s", *results]
    order += [LAST_TENTH + metric for metric in _metrics(study, curves)] + [*SETTINGS, EVALUATED_ON, *TAGS]
    out = io.StringIO()
    writer = csv.DictWriter(out, [key for key in dict.fromkeys(order) if key in used], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def curves_csv(run_ids: Iterable[str], curves: Curves) -> bytes:
    """Every curve of the runs as a compressed CSV: a row for each run and step, a column for each metric, six digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run_id", "step", *curves])
    for run_id in run_ids:
        points: dict[float, dict[str, float]] = {}
        for metric, of_run in curves.items():
            if run_id in of_run:
                for step, value in zip(of_run[run_id].steps, of_run[run_id].values, strict=True):
                    points.setdefault(float(step), {})[metric] = float(value)
        for step, values in sorted(points.items()):
            writer.writerow([run_id, f"{step:.15g}", *(f"{values[m]:.6g}" if m in values else "" for m in curves)])
    return gzip.compress(out.getvalue().encode(), mtime=0)  # no time of day: the same bytes for the same curves


def read_export(path: Path) -> tuple[list[RunRecord], dict[str, dict[str, Curve]]]:
    """The runs of a `runs.csv`, sorted by start, and the curves beside it (none where no file is there).

    Raises:
        ConfigError: for a file that is not there, or that no report wrote.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"report.csv={path} cannot be read ({error}); name a runs.csv that task=report wrote") from error
    missing = [key for key in (*FIRST, "started", "duration_s") if not rows or key not in rows[0]]
    if missing:
        raise ConfigError(f"report.csv={path} lacks {', '.join(missing)}; name a runs.csv that task=report wrote")
    try:
        runs = sorted((_record(row) for row in rows), key=lambda run: (run.started, run.run_id))
        return runs, kept_curves(path.parent / CURVES)
    except (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error) as error:
        what = f"report.csv={path}: it, or {CURVES} beside it, is damaged"
        raise ConfigError(f"{what} ({error}); write the report anew") from error


def started(run: RunRecord) -> str:
    return datetime.fromtimestamp(run.started / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def _metrics(study: Study, curves: Curves) -> list[str]:
    kept = (name.removeprefix(LAST_TENTH) for run in study.all_runs for name in run.metrics if name.startswith(LAST_TENTH))
    return list(dict.fromkeys([*(metric for metric in curves if not metric.startswith("eval/")), *kept]))


def _identity(run: RunRecord, arm: str) -> Sequence[str]:
    return (run.run_id, run.name, run.tags.get("trial", ""), run.state, run.reason, arm, run.seed)


def _record(row: dict[str, str]) -> RunRecord:
    columns = [*row]
    factors = columns[columns.index("seed") + 1 : columns.index("started")]
    given = {key: value for key, value in row.items() if value not in ("", None)}
    rest = {key: value for key, value in given.items() if key not in factors}
    state = "complete" if row["state"] in ("repeated", "without result", "forked") else row["state"]
    tags = {key: given[key] for key in ("seed", "trial", EVALUATED_ON, *TAGS) if key in given}
    tags["swept"] = json.dumps({key: row[key] for key in factors})
    metrics = {key: float(value) for key, value in rest.items() if _is_metric(key, columns)}
    return RunRecord(
        run_id=row["run_id"],
        name=row["run"],
        state=state,
        reason="" if state != row["state"] else row["reason"],
        started=round(datetime.fromisoformat(row["started"]).replace(tzinfo=UTC).timestamp() * 1000),
        duration_s=float(row["duration_s"]),
        tags=tags,
        params={key: given[key] for key in SETTINGS if key in given},
        metrics=by_current_name(metrics),
    )


def _is_metric(key: str, columns: Sequence[str]) -> bool:
    return columns.index(key) > columns.index("duration_s") and key not in (*SETTINGS, EVALUATED_ON, *TAGS)


def kept_curves(path: Path) -> dict[str, dict[str, Curve]]:
    """Metric -> run id -> curve of a file that `curves_csv` has made; none where no file is there."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        for metric, value in row.items():
            if metric not in ("run_id", "step") and value:
                points.setdefault(metric, {}).setdefault(row["run_id"], []).append((float(row["step"]), float(value)))
    return {m: {run: Curve(*np.array(values).T) for run, values in of_run.items()} for m, of_run in points.items()}
