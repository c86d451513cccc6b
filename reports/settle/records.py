"""The ended runs: from a store, in runs.csv, and the setting that those of tuning choose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient
from rules import ARMS, BORROWED, Setting, borrowed, settings_of, tuning_seeds

from oar_lightning.reporting import ReportConfig, read_runs
from oar_lightning.reporting.bands import END_COLUMNS, ends_of, last_tenth
from oar_lightning.reporting.rows import read_rows, write_rows
from oar_lightning.reporting.runs import Curves, RunRecord, ended, read_curves

SETS = {"graph": "graph", "asides": "chain", "long_answer": "chain"}
"""Task -> the name of its evaluation set."""


class Row(NamedTuple):
    """An ended run. `accuracy`: sampled, at the end, 0 to 1; `state`: complete, or failed (given up). What follows `run_id` is
    a mean over the last tenth of training, as is `entropy` (nats); then the seconds of the whole run and of its scoring.
    `greedy`: the accuracy with greedy decoding, at the end. `step_s`: the seconds of all its steps: rollouts, rewards, scoring
    and updates. NaN where it was not recorded."""

    task: str
    stage: str
    arm: str
    lr: str
    beta: str
    seed: int
    accuracy: float
    state: str
    cpu_s: float
    revision: str
    run_id: str
    grad_norm: float = math.nan
    ess_ratio: float = math.nan
    mean_length: float = math.nan
    forward_equivalents: float = math.nan
    total_s: float = math.nan
    score_s: float = math.nan
    entropy: float = math.nan
    greedy: float = math.nan
    step_s: float = math.nan


PHASES = tuple(f"time/total_{phase}_s" for phase in ("generate", "reward", "score", "update"))
"""Seconds of the parts of all steps."""
CURVES = ("reward", "entropy", "credit/right_guess_frac", "credit/guessed_turn_frac", *END_COLUMNS.values())
"""Metrics whose curves are kept."""


def row_of(run: RunRecord, sweep: str, curves: Curves) -> Row:
    """The run of a sweep that `command` has started: settle_<task>_<stage>_<arm>_<rate>[_<beta>]_from<first seed>."""
    named = sweep.removeprefix("settle_").rpartition("_")[0]
    task = next(name for name in SETS if named.startswith(f"{name}_"))
    stage, _, rest = named.removeprefix(f"{task}_").partition("_")
    arm = next(name for name in sorted(ARMS, key=len, reverse=True) if rest.startswith(f"{name}_"))
    lr, _, beta = rest.removeprefix(f"{arm}_").partition("_")
    return Row(
        task=task,
        stage=stage,
        arm=arm,
        lr=lr,
        beta=beta,
        seed=int(run.seed),
        accuracy=run.metrics[f"eval/{SETS[task]}/avg_at_4"],
        state=run.state,
        cpu_s=run.metrics.get("time/total_cpu_s", math.nan),
        revision=run.tags["git_revision"],
        run_id=run.run_id,
        **ends_of(run, curves),
        total_s=run.metrics.get("time/total_s", math.nan),
        score_s=run.metrics.get("time/total_score_s", math.nan),
        entropy=math.nan if (entropy := last_tenth(run, curves, "entropy")) is None else entropy,
        greedy=run.metrics.get(f"eval/{SETS[task]}/greedy", math.nan),
        step_s=sum(run.metrics.get(phase, math.nan) for phase in PHASES),
    )


def read_store(uri: str, metrics: Sequence[str] = ()) -> tuple[list[Row], Curves]:
    """The ended runs, and the curves of these metrics."""
    client = MlflowClient(uri)
    _, runs = read_runs(client, "oar_lightning", ReportConfig(filter="tags.sweep LIKE 'settle_%'", name="settle"))
    runs = ended(runs)
    curves = read_curves(client, runs, metrics)
    return [row_of(run, run.tags["sweep"], curves) for run in runs], curves


def read_csv(path: Path) -> list[Row]:
    """None where the file is not there yet."""
    return read_rows(Row, path) if path.exists() else []


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    write_rows(Row, path, sorted(rows, key=lambda row: row[:6]))  # of equal settings those read last come last, and count


def endpoint_runs(rows: Iterable[Row], task: str, stage: str = "endpoint") -> dict[str, dict[int, Row]]:
    """Arm -> seed -> its run of the endpoint, or of another stage."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if (row.task, row.stage) == (task, stage):
            found.setdefault(row.arm, {})[row.seed] = row
    return found


def best(rows: Sequence[Row], task: str, arm: str) -> Setting | None:
    """The setting with the highest mean accuracy of the tuning runs, the lower rate where two are equal; None as long as one
    is missing."""
    if arm in BORROWED:
        return borrowed(task, arm, best(rows, task, BORROWED[arm]))
    found: dict[Setting, dict[int, float]] = {}
    for row in rows:
        if (row.task, row.stage, row.arm) == (task, "tune", arm):
            found.setdefault(Setting(row.lr, row.beta), {})[row.seed] = row.accuracy
    settings, seeds = settings_of(task, arm), tuning_seeds(arm)
    if any(found.get(setting, {}).keys() < set(seeds) for setting in settings):
        return None
    return max(settings, key=lambda setting: (sum(found[setting][seed] for seed in seeds), -float(setting.lr)))
