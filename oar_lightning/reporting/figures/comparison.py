"""Figures that compare arms: results, differences from the baseline, accuracy against cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from oar_lightning.common.overrides import short
from oar_lightning.reporting.costs import COSTS, CPU, PASSES, cost
from oar_lightning.reporting.figures.drawing import Drawing, LeftOut, axes, draw_interval, legend_below, result_label, scale
from oar_lightning.reporting.method_style import GREY
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.series import MOST, PALE, arm_colors
from oar_lightning.reporting.statistics import mean_interval, pareto_front
from oar_lightning.reporting.study import Study

MOST_BARS = 30
AXES = {CPU: "CPU-seconds of a run (mean)", PASSES: "passes of scoring a step (mean)"}


def arm_bars(study: Study, curves: Curves) -> Drawing | LeftOut:
    """Means of the arms (probes, gate modes, methods, ...), and beside them differences from the baseline, paired by seed."""
    named = [short(key) for place, key in enumerate(study.factors) if not study.is_numeric(place)]
    title = f"Results by {' and '.join(named)}" if named else "Results by arm"
    if len(study.arms) < 2:
        return LeftOut(title, "there is one arm only")
    if not named or len(study.arms) > MOST_BARS:
        return LeftOut(title, f"it is for named arms, such as probes and gate modes, and for {MOST_BARS} of them at most")
    factor, unit = scale(study)
    colors = arm_colors(study)
    compared = [arm for arm in study.arms if arm is not study.baseline and study.differences(arm)]
    figure, panels = axes(2 if compared else 1, height=0.42 * len(study.arms) + 1.3, sharey=True)
    panels[0].set_xlim(_around([factor * v for arm in study.arms for v in study.values(arm)]))
    if compared:
        panels[1].set_xlim(_around([0.0, *(factor * d for arm in compared for d in study.differences(arm))]))
    for place, arm in enumerate(study.arms):
        values = factor * np.array(study.values(arm))
        style: dict[str, Any] = {"along": "x", "color": colors[arm.label], "capsize": 3}
        panels[0].plot(values, np.full(len(values), place), "o", color="black", markersize=2.5, alpha=0.6, zorder=3)
        draw_interval(panels[0], mean_interval(values), place, fmt="D", markersize=7, **style)
        if arm in compared:
            difference = mean_interval(factor * np.array(study.differences(arm)))
            draw_interval(panels[1], difference, place, fmt="o", markersize=6, **style)
    panels[0].set_yticks(range(len(study.arms)), [f"{arm.label} ({len(arm.runs)})" for arm in study.arms])
    panels[0].invert_yaxis()
    panels[0].set(xlabel=result_label(study))
    if compared and study.baseline:
        panels[1].axvline(0, color=GREY, linewidth=1)
        # the name of an arm may be wider than its panel
        panels[1].set(xlabel=f"difference{', points' if unit else ''}, from\n{study.baseline.label}")
    caption = (
        "Diamonds are means, whiskers 95 % intervals over seeds as in the tables, dots runs (how many: in brackets). Pale arms "
        "are not drawn in the figures over steps. A whisker that goes on beyond the panel ends in an arrowhead, and its end is "
        "written there."
    )
    return Drawing(title, caption + (" Right: differences paired by seed." if compared else ""), figure)


def pareto(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "Accuracy against cost"
    if len(study.arms) < 2:
        return LeftOut(title, "there is one arm only")
    if not study.of_accuracy:
        return LeftOut(title, f"{study.metric} is no accuracy, of which more is better")
    recorded = {metric: [[cost(run, curves, metric) for run in arm.runs] for arm in study.arms] for metric in COSTS}
    costs = {
        metric: [[value for value in arm if value is not None] for arm in arms]
        for metric, arms in recorded.items()
        if any(any(arm) for arm in arms)
    }
    if not costs:
        why = "no run recorded its processor time or counted passes of scoring; seconds of a shared machine would say little"
        return LeftOut(title, why)
    figure, panels = axes(len(costs), sharey=True)
    for axis, (metric, spent) in zip(panels, costs.items(), strict=True):
        _draw_costs(axis, study, spent)
        axis.set(xlabel=AXES[metric])
    panels[0].set(ylabel=result_label(study))
    legend_below(figure, panels)
    caption = (
        "Points are means with 95 % intervals over seeds as in the tables; one that goes on beyond the panel ends in "
        "an arrowhead. Diamonds are those that no other arm dominates. "
        "Passes: forward passes of a batch that scoring makes, beside those of training."
    )
    return Drawing(title, caption if len(study.arms) <= MOST else f"{caption} Arms that are no series are pale.", figure)


def _draw_costs(axis: Axes, study: Study, spent: Sequence[Sequence[float]]) -> None:
    """Results against what each arm's runs cost; arms whose cost is not known are left out."""
    factor, _ = scale(study)
    known = [(arm, mean_interval(values)) for arm, values in zip(study.arms, spent, strict=True) if values]
    results = [mean_interval(factor * np.array(study.values(arm))) for arm, _ in known]
    front = pareto_front([c.mean for _, c in known], [r.mean for r in results])
    corners = [(known[i][1].mean, results[i].mean) for i in front]
    name = "Pareto front" if len(front) > 1 else None
    axis.step(*zip(*corners, strict=True), where="post", color=GREY, linewidth=1, linestyle=":", label=name)
    axis.set_ylim(_around([factor * v for arm, _ in known for v in study.values(arm)]))
    colors = arm_colors(study)
    for place, ((arm, spending), result) in enumerate(zip(known, results, strict=True)):
        shown = colors[arm.label] != PALE
        draw_interval(
            axis, result, spending.mean,
            fmt="D" if place in front else "o", markersize=6, capsize=2, elinewidth=0.8,
            color=colors[arm.label], zorder=3 if shown else 2, label=f"{arm.label} ({len(arm.runs)})" if shown else None,
        )  # fmt: skip
    means = [c.mean for _, c in known]
    if min(means) > 0 and max(means) > 5 * min(means):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if str(x)[0] in "2346" else "")


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that shows all runs; an interval of three runs may be many times as wide as what they differ by."""
    margin = 0.25 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin
