"""Figures of results against settings: a map over tau and beta, and a panel for each number that was varied."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar_lightning.reporting.factors import Level, label, show
from oar_lightning.reporting.figures.drawing import Drawing, LeftOut, axes, result_label, scale
from oar_lightning.reporting.method_style import GREY, PALETTE
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.series import MOST, PALE, RATE, arm_colors, sequence_colors
from oar_lightning.reporting.study import BETA, TAU, Arm, Study

MOST_CELLS = 12
"""The most levels along a side of the map; with more the runs are drawn as points."""

MOST_PANELS = 4

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
"""Of lines, whose colours alone would be hard to tell apart."""


def tau_beta(study: Study, curves: Curves) -> Drawing | LeftOut:
    """A map of mean results over tau and beta; a sampler's scattered trials as points."""
    title = "Results over tau and beta"
    tau, beta = study.place(TAU), study.place(BETA)
    if tau is None or beta is None or not (study.is_numeric(tau) and study.is_numeric(beta)):
        return LeftOut(title, "tau and beta were not both varied")
    factor, _ = scale(study)
    points = [(float(arm.levels[tau]), float(arm.levels[beta]), factor * v) for arm in study.arms for v in study.values(arm)]
    taus, betas = [np.unique([p[side] for p in points]) for side in (0, 1)]
    scattered = max(len(taus), len(betas)) > MOST_CELLS
    if (others := [key for key in study.factors if key not in (TAU, BETA)]) and not scattered:
        return LeftOut(title, f"its cells would pool runs that differ in {' and '.join(others)}")
    figure, (axis,) = axes(height=4.2)
    axis.set(xlabel="tau", ylabel="beta")
    name = result_label(study)
    if scattered:
        _draw_points(figure, axis, points, name)
        return Drawing(title, "One point a run; the highest has a ring.", figure)
    cells = {(t, b): [v for x, y, v in points if (x, y) == (t, b)] for t in taus for b in betas}
    _draw_cells(figure, axis, taus, betas, cells, name)
    caption = "Mean and number of runs of each cell, the highest framed; beside the axes the means over their row or column."
    return Drawing(title, caption, figure)


def responses(study: Study, curves: Curves) -> Drawing | LeftOut:
    """Results of the runs against each numeric factor, with the line of their means where it has few levels."""
    title = "Results against each setting"
    numeric = [p for p in range(len(study.factors)) if study.is_numeric(p) and len(study.levels(p)) > 2][:MOST_PANELS]
    if not numeric:
        return LeftOut(title, "no setting was given more than two numbers")
    factor, _ = scale(study)
    figure, panels = axes(len(numeric), sharey=True)
    for axis, place in zip(panels, numeric, strict=True):
        _draw_response(axis, study, place, factor)
    panels[0].set_ylabel(result_label(study))
    caption = "Dots are runs. A line joins the means of arms that differ in this setting alone; others have dots and no line."
    return Drawing(title, caption, figure)


def _draw_response(axis: Axes, study: Study, place: int, factor: float) -> None:
    """Results against one number; where all other settings have few combinations, each has a line of its own."""
    groups: dict[tuple[Level, ...], list[Arm]] = {}
    for arm in study.arms:
        groups.setdefault((*arm.levels[:place], *arm.levels[place + 1 :]), []).append(arm)
    lines = {others: arms for others, arms in groups.items() if len(arms) > 1}
    others = [key for i, key in enumerate(study.factors) if i != place]
    joined = 0 < len(lines) <= MOST
    colors = _line_colors(study, place, [*lines.values()]) if joined else []
    looks = dict(zip(lines if joined else (), zip(colors, MARKERS[: len(colors)], strict=True), strict=True))
    for combination, arms in groups.items():
        color, marker = looks.get(combination, (GREY if joined else PALETTE[1], ""))
        points = [(float(arm.levels[place]), factor * v) for arm in arms for v in study.values(arm)]
        axis.plot(*zip(*points, strict=True), ".", color=color, alpha=0.5)
        if combination in looks:
            means = sorted((float(arm.levels[place]), factor * float(np.mean(study.values(arm)))) for arm in arms)
            name = label(others, combination) if others else None
            axis.plot(*zip(*means, strict=True), color=color, marker=marker, markersize=6, linewidth=1.5, label=name)
    levels = sorted({float(arm.levels[place]) for arm in study.arms})
    if _log_spaced(levels):
        axis.set_xscale("log")
    if place == study.place(RATE) and len(levels) <= MOST_CELLS:
        axis.set_xticks(levels, [show(level) for level in levels])
    key = study.factors[place]
    axis.set(xlabel=f"learning rate ({key})" if key == RATE else key)
    if joined and others:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, fontsize="x-small", frameon=False)


def _line_colors(study: Study, place: int, lines: Sequence[Sequence[Arm]]) -> list[str]:
    """From dark to light where only numbers tell lines apart; against the learning rate the methods' own of other figures."""
    if len(lines) > 1 and all(study.is_numeric(i) for i in range(len(study.factors)) if i != place):
        return sequence_colors(len(lines))
    if place != study.place(RATE):
        return [*PALETTE, GREY][: len(lines)]
    own = arm_colors(study)
    return [next((own[arm.label] for arm in arms if own[arm.label] != PALE), PALE) for arms in lines]


def _log_spaced(levels: Sequence[float]) -> bool:
    """Whether levels are dense at the lower end of a wide range, as on a log scale."""
    wide = levels[0] > 0 and levels[-1] >= 100 * levels[0]
    return wide and bool(np.median(levels) - levels[0] < 0.1 * (levels[-1] - levels[0]))


def _draw_cells(
    figure: Figure, axis: Axes, taus: np.ndarray, betas: np.ndarray, cells: dict[tuple[float, float], list[float]], name: str
) -> None:
    means = np.array([[np.mean(cells[t, b]) if cells[t, b] else np.nan for t in taus] for b in betas])
    axis.grid(False)
    axis.set_facecolor("#eeeeee")  # cells without a run
    image = axis.imshow(means, origin="lower", aspect="auto", cmap="viridis")
    figure.colorbar(image, label=name)
    middle = (np.nanmin(means) + np.nanmax(means)) / 2
    for row, b in enumerate(betas):
        for column, t in enumerate(taus):
            runs, mean = cells[t, b], means[row, column]
            text = f"{mean:.3g}\n({len(runs)})" if runs else "-"
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if not mean < middle else "white")
    best = np.unravel_index(np.nanargmax(means), means.shape)
    axis.add_patch(mpl.patches.Rectangle((best[1] - 0.5, best[0] - 0.5), 1, 1, fill=False, edgecolor="#c0392b", linewidth=2.5))
    axis.set_xticks(range(len(taus)), [f"{show(float(t))}\n[{m:.3g}]" for t, m in zip(taus, np.nanmean(means, 0), strict=True)])
    axis.set_yticks(
        range(len(betas)), [f"{show(float(b))} [{m:.3g}]" for b, m in zip(betas, np.nanmean(means, 1), strict=True)]
    )


def _draw_points(figure: Figure, axis: Axes, points: list[tuple[float, float, float]], name: str) -> None:
    x, y, values = np.array(points).T
    drawn = axis.scatter(x, y, c=values, cmap="viridis", s=45, zorder=3)
    best = int(values.argmax())
    axis.plot(x[best], y[best], "o", markersize=14, markerfacecolor="none", markeredgecolor="#c0392b", markeredgewidth=2)
    figure.colorbar(drawn, label=name)
