"""Figures that compare arms: results, differences from the baseline, accuracy against cost."""

from __future__ import annotations

import numpy as np

from oar_lightning.common.overrides import short
from oar_lightning.reporting.figures.drawing import Curves, Drawing, LeftOut, axes, legend_below, scale
from oar_lightning.reporting.series import GREY, MOST, arm_colors
from oar_lightning.reporting.statistics import Interval, mean_interval, pareto_front
from oar_lightning.reporting.study import Study

MOST_BARS = 30


def arm_bars(study: Study, curves: Curves) -> Drawing | LeftOut:
    """Bars of the arms (probes, gate modes, methods, ...), and beside them differences from the baseline, paired by seed."""
    named = [short(key) for place, key in enumerate(study.factors) if not study.is_numeric(place)]
    title = f"Results by {' and '.join(named)}" if named else "Results by arm"
    if len(study.arms) < 2:
        return LeftOut(title, "there is one arm only")
    if not named or len(study.arms) > MOST_BARS:
        return LeftOut(title, f"it is for named arms, such as probes and gate modes, and for {MOST_BARS} of them at most")
    factor, unit = scale([v for arm in study.arms for v in study.values(arm)])
    colors = arm_colors(study)
    compared = [arm for arm in study.arms if arm is not study.baseline and study.differences(arm)]
    figure, panels = axes(2 if compared else 1, height=0.42 * len(study.arms) + 1.3, sharey=True)
    for place, arm in enumerate(study.arms):
        values = factor * np.array(study.values(arm))
        interval = mean_interval(values)
        panels[0].barh(place, interval.mean, color=colors[arm.label], alpha=0.55, xerr=_error(interval), capsize=3)
        panels[0].plot(values, np.full(len(values), place), "o", color="black", markersize=3, alpha=0.7)
        if arm in compared:
            difference = mean_interval(factor * np.array(study.differences(arm)))
            panels[1].errorbar(
                difference.mean, place, xerr=_error(difference), fmt="o", color=colors[arm.label], capsize=3, markersize=6
            )
    panels[0].set_yticks(range(len(study.arms)), [f"{arm.label} ({len(arm.runs)})" for arm in study.arms])
    panels[0].invert_yaxis()
    panels[0].set(xlabel=f"{study.metric}{',' + unit if unit else ''}")
    if compared and study.baseline:
        panels[1].axvline(0, color=GREY, linewidth=1)
        panels[1].margins(x=0.1)
        # the name of an arm may be wider than its panel
        panels[1].set(xlabel=f"difference{', points' if unit else ''}, from\n{study.baseline.label}")
    caption = "Bars are means, whiskers 95 % intervals over seeds as in the tables, dots runs."
    return Drawing(title, caption + (" Right: differences paired by seed." if compared else ""), figure)


def pareto(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "Accuracy against cost"
    if len(study.arms) < 2:
        return LeftOut(title, "there is one arm only")
    factor, unit = scale([v for arm in study.arms for v in study.values(arm)])
    costs = [mean_interval([run.duration_s for run in arm.runs]) for arm in study.arms]
    results = [mean_interval(factor * np.array(study.values(arm))) for arm in study.arms]
    if not all(cost.mean > 0 for cost in costs):
        return LeftOut(title, "runs have no duration (time/total_s)")
    front = pareto_front([c.mean for c in costs], [r.mean for r in results])
    figure, (axis,) = axes()
    corners = [(costs[i].mean, results[i].mean) for i in front]
    axis.step(
        *zip(*corners, strict=True),
        where="post",
        color=GREY,
        linewidth=1,
        linestyle=":",
        label="Pareto front" if len(front) > 1 else None,
    )
    colors = arm_colors(study)
    few = len(study.arms) <= MOST
    for place, (arm, cost, result) in enumerate(zip(study.arms, costs, results, strict=True)):
        shown = few or place in front or arm is study.baseline
        axis.errorbar(
            cost.mean, result.mean, xerr=_error(cost), yerr=_error(result),
            fmt="D" if place in front else "o", markersize=6, capsize=2, elinewidth=0.8,
            color=colors[arm.label] if shown else "#c3cad1", zorder=3 if shown else 2,
            label=f"{arm.label} ({len(arm.runs)})" if shown else None,
        )  # fmt: skip
    if max(c.mean for c in costs) > 5 * min(c.mean for c in costs):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if str(x)[0] in "2346" else "")
    axis.set(xlabel="seconds of a run (mean)", ylabel=f"{study.metric}{',' + unit if unit else ''}")
    legend_below(figure, axis)
    caption = (
        "Points are means with 95 % intervals over seeds as in the tables; diamonds are those that no other arm beats in both. "
        "Seconds depend on what else the machine did."
    )
    return Drawing(title, caption if few else f"{caption} Arms that are not on the front are grey.", figure)


def _error(interval: Interval) -> list[list[float]] | None:
    """Whiskers below and above a mean that has an interval."""
    if np.isnan(interval.low):
        return None
    return [[interval.mean - interval.low], [interval.high - interval.mean]]
