"""A study's tables: each is a header and rows of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oar_lightning.reporting.bands import last_tenth
from oar_lightning.reporting.costs import COST_DIGITS, COSTS, cost
from oar_lightning.reporting.factors import level, show
from oar_lightning.reporting.figures.drawing import scale
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.settings import ENDS
from oar_lightning.reporting.statistics import holm, mean_interval, sign_flip_p, smallest_p
from oar_lightning.reporting.study import Arm, Study


def results_table(study: Study, curves: Curves) -> list[list[str]]:
    """The mean result of each arm with its interval; the highest in bold."""
    factor, unit = scale(study)
    ends = {m: name for m, name in ENDS.items() if any(last_tenth(run, curves, m) is not None for run in study.runs)}
    costs = {m: name for m, name in COSTS.items() if any(cost(run, curves, m) for run in study.runs)}
    rows = [["arm", "n", f"{study.metric}{',' + unit if unit else ''} [95 %]", *costs.values(), *ends.values()]]
    highest = max(float(np.mean(study.values(arm))) for arm in study.arms)
    for arm in study.arms:
        shown = _result(study, arm, factor)
        given_up = study.given_up(arm)
        best = np.mean(study.values(arm)) == highest and len(study.arms) > 1 and not given_up
        shown = f"**{shown}**" if best else shown
        number = f"{len(arm.runs)} ({given_up} given up)" if given_up else str(len(arm.runs))
        spent = [_mean([cost(run, curves, metric) for run in arm.runs], COST_DIGITS[metric]) for metric in costs]
        last = [_mean([last_tenth(run, curves, metric) for run in arm.runs], ".3f") for metric in ends]
        rows.append([arm.label, number, shown, *spent, *last])
    return rows


def differences_table(study: Study) -> list[list[str]]:
    """Paired differences of each arm from the baseline, with the sign-flip test; only the header where no arm shares a seed."""
    factor, unit = scale(study)
    rows = [["arm", "pairs", f"difference{', points' if unit else ''} [95 %]", "p", "p, Holm", "smallest possible p"]]
    compared = [(arm, study.differences(arm)) for arm in study.arms if arm is not study.baseline]
    compared = [(arm, differences) for arm, differences in compared if differences]
    p_values = [sign_flip_p(differences) for _, differences in compared]
    for (arm, differences), p, adjusted in zip(compared, p_values, holm(p_values), strict=True):
        n = len(differences)
        interval = mean_interval(factor * np.array(differences))
        shown = f"{interval:+.2f}"
        rows.append([arm.label, str(n), shown, f"{p:.3g}", f"{adjusted:.3g}", f"{smallest_p(n):.3g}"])
    return rows


def uncounted_table(study: Study) -> list[list[str]]:
    rows = [["run", "trial", "settings", "seed", "state", "reason"]]
    for run in study.uncounted:
        settings = " ".join(f"{key}={show(level(run, key))}" for key in study.factors)
        rows.append([f"{run.name} `{run.run_id[:8]}`", run.tags.get("trial", "-"), settings, run.seed, run.state, run.reason])
    return [[cell.strip() or "-" for cell in row] for row in rows]


def _result(study: Study, arm: Arm, factor: float) -> str:
    """Mean and interval over seeds; for a single run, in italics, the interval over the evaluation's problems."""
    interval = mean_interval(factor * np.array(study.values(arm)))
    if interval.n > 1:
        return f"{interval:.2f}"
    metrics = arm.runs[0].metrics
    interval_of_run = [metrics.get(f"{study.metric}_{end}") for end in ("low", "high")]
    bounds: Sequence[float] = [factor * value for value in interval_of_run if value is not None]
    return f"{interval.mean:.2f} *[{bounds[0]:.2f}, {bounds[1]:.2f}]*" if len(bounds) == 2 else f"{interval:.2f}"


def _mean(values: Sequence[float | None], digits: str) -> str:
    recorded = [value for value in values if value is not None]
    return f"{np.mean(recorded):{digits}}" if recorded else "-"
