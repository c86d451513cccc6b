"""A study's tables: each is a header and rows of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from oar_lightning.reporting.bands import final_value
from oar_lightning.reporting.factors import level, show
from oar_lightning.reporting.figures import Curves
from oar_lightning.reporting.figures.drawing import scale
from oar_lightning.reporting.runs import RunRecord
from oar_lightning.reporting.statistics import Interval, holm, mean_interval, sign_flip_p, smallest_p
from oar_lightning.reporting.study import Arm, Study

ENDS = {"credit/ess_ratio": "ESS-ratio", "credit/top10_mass": "top-10 % mass", "entropy": "entropy, nats"}
"""Metrics whose mean over the last tenth of training is shown."""

IN_CSV = (*(f"time/total_{phase}_s" for phase in ("generate", "reward", "score", "update")), *ENDS)


def results_table(study: Study, curves: Curves) -> list[list[str]]:
    """The mean result of each arm with its interval; the highest in bold."""
    factor, unit = scale([v for arm in study.arms for v in study.values(arm)])
    ends = {metric: name for metric, name in ENDS.items() if metric in curves}
    rows = [["arm", "n", f"{study.metric}{',' + unit if unit else ''} [95 %]", "seconds of a run", *ends.values()]]
    highest = max(float(np.mean(study.values(arm))) for arm in study.arms)
    for arm in study.arms:
        shown = _result(study, arm, factor)
        shown = f"**{shown}**" if np.mean(study.values(arm)) == highest and len(study.arms) > 1 else shown
        seconds = f"{np.mean([run.duration_s for run in arm.runs]):.0f}"
        rows.append([_text(arm.label), str(len(arm.runs)), shown, seconds, *(_end(arm, curves, metric) for metric in ends)])
    return rows


def differences_table(study: Study) -> list[list[str]]:
    """Paired differences of each arm from the baseline, with the sign-flip test; only the header where no arm shares a seed."""
    factor, unit = scale([v for arm in study.arms for v in study.values(arm)])
    rows = [["arm", "pairs", f"difference{', points' if unit else ''} [95 %]", "p", "p, Holm", "smallest possible p"]]
    compared = [(arm, study.differences(arm)) for arm in study.arms if arm is not study.baseline]
    compared = [(arm, differences) for arm, differences in compared if differences]
    p_values = [sign_flip_p(differences) for _, differences in compared]
    for (arm, differences), p, adjusted in zip(compared, p_values, holm(p_values), strict=True):
        n = len(differences)
        interval = mean_interval(factor * np.array(differences))
        shown = f"{interval.mean:+.2f}" + _brackets(interval, "+.2f")
        rows.append([_text(arm.label), str(n), shown, f"{p:.3g}", f"{adjusted:.3g}", f"{smallest_p(n):.3g}"])
    return rows


def uncounted_table(study: Study) -> list[list[str]]:
    rows = [["run", "trial", "settings", "seed", "state", "reason"]]
    for run in study.uncounted:
        settings = " ".join(f"{key}={show(level(run, key))}" for key in study.factors)
        rows.append([f"{run.name} `{run.run_id[:8]}`", run.tags.get("trial", "-"), settings, run.seed, run.state, run.reason])
    return [[_text(cell) or "-" for cell in row] for row in rows]


def runs_csv(study: Study) -> str:
    """All runs of the study in full precision as CSV, those that count first."""
    arms = {run.run_id: arm.label for arm in study.arms for run in arm.runs}
    metrics = [name for name in IN_CSV if any(name in run.metrics for run in study.all_runs)]
    results = [study.metric, *(f"{study.metric}_{end}" for end in ("low", "high"))]
    columns = [*results, *(name for name in metrics if name not in results)]
    about = [
        "run_id",
        "run",
        "trial",
        "state",
        "reason",
        "arm",
        "seed",
        *study.factors,
        "started",
        "duration_s",
        "git_revision",
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*about, *columns])
    for run in study.all_runs:
        levels = [level(run, key) for key in study.factors]
        tags = run.tags.get
        writer.writerow(
            [run.run_id, run.name, tags("trial", ""), run.state, run.reason, arms.get(run.run_id, ""), run.seed]
            + [f"{value:g}" if isinstance(value, float) else value for value in levels]
            + [started(run), run.duration_s, tags("git_revision", ""), *(run.metrics.get(name, "") for name in columns)]
        )
    return out.getvalue()


def started(run: RunRecord) -> str:
    return datetime.fromtimestamp(run.started / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _result(study: Study, arm: Arm, factor: float) -> str:
    """Mean and interval over seeds; for a single run, in italics, the interval over the evaluation's problems."""
    interval = mean_interval(factor * np.array(study.values(arm)))
    if interval.n > 1:
        return f"{interval.mean:.2f}" + _brackets(interval, ".2f")
    metrics = arm.runs[0].metrics
    interval_of_run = [metrics.get(f"{study.metric}_{end}") for end in ("low", "high")]
    bounds: Sequence[float] = [factor * value for value in interval_of_run if value is not None]
    return f"{interval.mean:.2f}" + (f" *[{bounds[0]:.2f}, {bounds[1]:.2f}]*" if len(bounds) == 2 else "")


def _brackets(interval: Interval, digits: str) -> str:
    return "" if np.isnan(interval.low) else f" [{interval.low:{digits}}, {interval.high:{digits}}]"


def _end(arm: Arm, curves: Curves, metric: str) -> str:
    ends = [final_value(curves[metric][run.run_id]) for run in arm.runs if run.run_id in curves[metric]]
    return f"{np.mean(ends):.3f}" if ends else "-"


def _text(text: str) -> str:
    """Text without line breaks and bars, which would end a table cell."""
    return " ".join(text.split()).replace("|", "\\|")
