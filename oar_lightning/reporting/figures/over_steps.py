"""Figures over optimizer steps: accuracy, unevenness of the weights, entropy."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from oar_lightning.common.overrides import short
from oar_lightning.reporting.bands import final_value
from oar_lightning.reporting.factors import ordered, show
from oar_lightning.reporting.figures.drawing import Curves, Drawing, LeftOut, axes, legend_below
from oar_lightning.reporting.series import Series, sequence_colors, series_band, study_series
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM
from oar_lightning.reporting.study import ACCURACY, Study

BANDS = (
    "Lines are means over runs (how many: in brackets), bands the runs' range, "
    f"from {BOOTSTRAP_FROM} runs on bootstrap 95 % intervals"
)


def learning_curves(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "Learning curves"
    metrics = [m for m in curves if ACCURACY.fullmatch(m) and any(len(c.steps) > 1 for c in curves[m].values())]
    if not metrics:
        return LeftOut(title, "no run was evaluated more than once (eval/*/avg_at_*)")
    series, note = study_series(study)
    figure, panels = axes(len(metrics))
    for axis, metric in zip(panels, metrics, strict=True):
        _draw_bands(axis, series, curves, metric, factor=100.0, marker="o")
        axis.set(xlabel="optimizer step", ylabel=f"{metric.removeprefix('eval/')}, %")
    legend_below(figure, panels[0])
    return Drawing(title, f"Held-out sampled accuracy. {BANDS}. {note}".strip(), figure)


def credit_shape(study: Study, curves: Curves) -> Drawing | LeftOut:
    title = "ESS-ratio and top-10 % mass"
    metrics = {"credit/ess_ratio": "ESS-ratio (uniform: 1)", "credit/top10_mass": "mass of the top 10 % (uniform: 0.1)"}
    missing = [m for m in metrics if m not in curves]
    if missing:
        return LeftOut(title, f"no run logged {' and '.join(missing)}")
    series, note = study_series(study)
    figure, panels = axes(2)
    for axis, (metric, name) in zip(panels, metrics.items(), strict=True):
        _draw_bands(axis, series, curves, metric)
        axis.set(xlabel="optimizer step", ylabel=name)
    legend_below(figure, panels[0])
    caption = f"How uneven the token weights are, running means over a twentieth of the steps. {BANDS}. {note}"
    return Drawing(title, caption.strip(), figure)


def entropy(study: Study, curves: Curves) -> Drawing | LeftOut:
    """Entropy over steps and, where tau was varied, final entropy against tau, which shows where low tau collapses."""
    title = "Entropy"
    if "entropy" not in curves:
        return LeftOut(title, "no run logged entropy")
    series, note = study_series(study)
    tau = study.place("tau")
    frontier = tau is not None and study.is_numeric(tau)
    figure, panels = axes(2 if frontier else 1)
    _draw_bands(panels[0], series, curves, "entropy")
    panels[0].set(xlabel="optimizer step", ylabel="entropy of the policy, nats per token")
    panels[0].set_ylim(bottom=0)
    caption = f"Entropy of sampled tokens, running means over a twentieth of the steps. {BANDS}. {note}".strip()
    if frontier:
        _draw_frontier(panels[1], study, curves, int(tau or 0))
        panels[1].set_ylim(bottom=0)
        caption += " Right: the mean over the last tenth of training against tau; where it falls to 0 the policy has collapsed."
    legend_below(figure, panels[0])
    return Drawing(title, caption, figure)


def _draw_frontier(axis: Axes, study: Study, curves: Curves, tau: int) -> None:
    beta = study.place("beta")
    lines = study.levels(beta) if beta is not None else [None]
    lines = lines if len(lines) <= 6 else [None]  # more lines could not be distinguished
    for color, line in zip(sequence_colors(len(lines)), lines, strict=True):
        points = []
        for arm in study.arms:
            if line is None or (beta is not None and arm.levels[beta] == line):
                ends = [final_value(curves["entropy"][run.run_id]) for run in arm.runs if run.run_id in curves["entropy"]]
                points += [(float(arm.levels[tau]), end) for end in ends]
        levels = ordered(x for x, _ in points)
        axis.plot(*zip(*points, strict=True), ".", color=color, alpha=0.6)
        if len(levels) < len(points) or line is not None:
            means = [np.mean([y for x, y in points if x == level]) for level in levels]
            name = "" if line is None or beta is None else f"{short(study.factors[beta])}={show(line)}"
            axis.plot(levels, means, color=color, marker="o", markersize=4, label=name or None)
    axis.set(xlabel="tau", ylabel="entropy at the end, nats per token")
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize="small")


def _draw_bands(axis: Axes, series: list[Series], curves: Curves, metric: str, factor: float = 1.0, marker: str = "") -> None:
    for place, one in enumerate(series):
        band = series_band(one, curves.get(metric, {}))
        if band is None:
            continue
        dashes = "--" if place >= 10 else "-"
        axis.plot(
            band.steps, factor * band.mean, dashes, color=one.color, linewidth=1.8, marker=marker, markersize=3.5,
            label=f"{one.label} ({band.n})",
        )  # fmt: skip
        axis.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        axis.fill_between(band.steps, factor * band.low, factor * band.high, color=one.color, alpha=0.15, linewidth=0)
