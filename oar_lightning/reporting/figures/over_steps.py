"""Figures over optimizer steps: accuracy, unevenness of the weights, entropy."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oar_lightning.common.overrides import short
from oar_lightning.reporting.bands import final_value
from oar_lightning.reporting.factors import ordered, show
from oar_lightning.reporting.figures.drawing import Drawing, LeftOut, axes, cells, legend_below
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.series import Series, sequence_colors, series_band, study_series
from oar_lightning.reporting.settings import accuracy_in_words
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM
from oar_lightning.reporting.study import ACCURACY, BETA, TAU, Study

BANDS = (
    "Lines are means over runs (how many: in brackets), bands the runs' range, "
    f"from {BOOTSTRAP_FROM} runs on bootstrap 95 % intervals"
)
READ = "Without a KL or entropy term these are the completions that have an advantage."
COLUMNS = 4
TOGETHER = 4
"""The most bands that can be told apart in one panel; more have a panel each, with the baseline in grey."""


def learning_curves(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "Learning curves"
    metrics = [m for m in curves if ACCURACY.fullmatch(m) and any(len(c.steps) > 1 for c in curves[m].values())]
    if not metrics:
        return LeftOut(title, "no run was evaluated more than once (eval/*/avg_at_*), or its curve was not kept")
    words = accuracy_in_words(study.runs)
    names = {m: f"{words}, %" if len(metrics) == 1 else f"{m.removeprefix('eval/')}, %" for m in metrics}
    figure, _, note = _over_steps(study, curves, names, factor=100.0, marker="o")
    said = words if words.startswith("sampled") else f"sampled {words}"
    return Drawing(title, f"{said[0].upper()}{said[1:]}. {BANDS}. {note}".strip(), figure)


def credit_shape(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "ESS-ratio and top-10 % mass"
    metrics = {"credit/ess_ratio": "ESS-ratio (uniform: 1)", "credit/top10_mass": "mass of the top 10 % (uniform: 0.1)"}
    missing = [m for m in metrics if m not in curves]
    if missing:
        return LeftOut(title, f"no run logged {' and '.join(missing)}, or its curve was not kept")
    figure, _, note = _over_steps(study, curves, metrics)
    caption = f"How uneven the token weights are, running means over a twentieth of the steps. {BANDS}. {note}"
    return Drawing(title, caption.strip(), figure)


def entropy(study: Study, curves: Curves) -> Drawing | LeftOut:
    """Entropy over steps and, where tau was varied, final entropy against tau, which shows where low tau collapses."""
    title = "Entropy"
    if "entropy" not in curves:
        return LeftOut(title, "no run logged entropy, or its curve was not kept")
    tau = study.place(TAU)
    frontier = tau is not None and study.is_numeric(tau) and {*study.factors} <= {TAU, BETA}  # others would be pooled
    figure, panels, note = _over_steps(study, curves, {"entropy": "entropy of the policy, nats per token"}, more=int(frontier))
    caption = f"Entropy over the completions that the update read, running means over a twentieth of the steps. {READ} {BANDS}."
    caption = f"{caption} {note}".strip()
    if frontier:
        _draw_frontier(panels[-1], study, curves, int(tau or 0))
        caption += " Last panel: the mean over the last tenth of training against tau; at 0 the policy has collapsed."
    return Drawing(title, caption, figure)


def _over_steps(
    study: Study, curves: Curves, metrics: Mapping[str, str], factor: float = 1.0, marker: str = "", more: int = 0
) -> tuple[Figure, list[Axes], str]:
    """Metrics (-> the axis' words) of the study's series, `more` empty panels, and a note on which arms they are of.

    Few series are drawn in one panel for each metric; many have a panel each.
    """
    series, note = study_series(study)
    series = [one for one in series if any(run in curves[m] for m in metrics for run in one.run_ids)]
    base = [one for one in series if one.base]
    together = len(series) <= TOGETHER
    groups = [series] if together else [[*base, one] for one in series if not one.base]
    width = len(groups) if together else math.ceil(len(groups) / COLUMNS) * min(COLUMNS, len(groups))  # panels of a metric
    count = len(metrics) * width + more
    figure, panels = axes(count) if together else cells(count, min(COLUMNS, max(len(groups), 1 + more)))
    for number, (metric, group) in enumerate((m, g) for m in metrics for g in groups):
        place = number // len(groups) * width + number % len(groups)
        axis = panels[place]
        _draw_bands(axis, group, curves, metric, factor, marker)
        if not together:
            axis.set_title(group[-1].label, fontsize="small")
        first = number % len(groups) == 0
        axis.set(xlabel="optimizer step", ylabel=textwrap.fill(metrics[metric], 28) if together or first else "")
        axis.yaxis.label.set_fontsize("small")
    for start in range(0, len(metrics) * width, width):
        _same_limits(panels[start : start + len(groups)])
        for unused in panels[start + len(groups) : start + width]:
            unused.set_visible(False)
    if together or base:
        legend_below(figure, panels if together else panels[0], None if together else 1)
    return figure, panels, note


def _same_limits(panels: Sequence[Axes]) -> None:
    low, high = min(axis.get_ylim()[0] for axis in panels), max(axis.get_ylim()[1] for axis in panels)
    for axis in panels:
        axis.set_ylim(low, high)


def _draw_frontier(axis: Axes, study: Study, curves: Curves, tau: int) -> None:
    beta = study.place(BETA)
    lines = study.levels(beta) if beta is not None else [None]
    lines = lines if len(lines) <= 6 else [None]  # more lines could not be distinguished
    for color, line in zip(sequence_colors(len(lines)), lines, strict=True):
        points = []
        for arm in study.arms:
            if line is None or (beta is not None and arm.levels[beta] == line):
                ends = [final_value(curves["entropy"][run.run_id]) for run in arm.runs if run.run_id in curves["entropy"]]
                points += [(float(arm.levels[tau]), end) for end in ends]
        if not points:
            continue
        levels = ordered(x for x, _ in points)
        axis.plot(*zip(*points, strict=True), ".", color=color, alpha=0.6)
        if line is not None or beta is None:
            means = [np.mean([y for x, y in points if x == level]) for level in levels]
            name = "" if line is None or beta is None else f"{short(study.factors[beta])}={show(line)}"
            axis.plot(levels, means, color=color, marker="o", markersize=4, label=name or None)
    axis.set(xlabel="tau", ylabel="entropy at the end, nats per token")
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize="small")


def _draw_bands(axis: Axes, series: list[Series], curves: Curves, metric: str, factor: float = 1.0, marker: str = "") -> None:
    for place, one in enumerate(series):
        band = series_band(one, curves.get(metric, {}), smooth=not ACCURACY.fullmatch(metric))
        if band is None:
            continue
        axis.plot(
            band.steps, factor * band.mean, color=one.color, linewidth=1.8, marker=marker, markersize=3.5,
            label=f"{one.label} ({band.n})",
        )  # fmt: skip
        axis.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axis.fill_between(
            band.steps, factor * band.low, factor * band.high, facecolor=to_rgba(one.color, 0.13),
            edgecolor=to_rgba(one.color, 0.6), linewidth=0.7, linestyle=(":", "--", "-.", "-")[place % 4],
        )  # fmt: skip
