"""Types and helpers of all figures: axes, legends, scales, and saving."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar_lightning.reporting.settings import accuracy_in_words
from oar_lightning.reporting.statistics import Interval
from oar_lightning.reporting.study import ACCURACY, Study

CHARACTERS_PER_INCH = 14
"""Width of a legend's small type."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its title, and a caption that explains it."""

    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class LeftOut:
    """A figure that is not drawn, and why."""

    title: str
    reason: str


def axes(columns: int = 1, height: float = 4.0, width: float = 7.0, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    wide = width if columns == 1 else 4.6 * columns
    figure, grid = plt.subplots(1, columns, figsize=(wide, height), layout="constrained", squeeze=False, **options)
    for axis in grid[0]:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure, [*grid[0]]


def cells(count: int, columns: int = 4) -> tuple[Figure, list[Axes]]:
    """A figure of small panels, row by row."""
    rows, columns = math.ceil(count / columns), min(count, columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.9 * max(columns, 2), 2.4 * rows + 0.4), layout="constrained", squeeze=False
    )
    panels = [*grid.flat]
    for axis in panels[:count]:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    for axis in panels[count:]:
        axis.set_visible(False)
    return figure, panels[:count]


def draw_interval(axis: Axes, interval: Interval, at: float, along: str = "y", **style: Any) -> None:
    """A mean with whiskers `along` an axis, at a place of the other one. The limits have to be set: a whisker that would leave
    them ends at the edge, in an arrowhead; along x with the number to which it goes."""
    low, high = sorted(axis.get_ylim() if along == "y" else axis.get_xlim())
    error = None
    if not np.isnan(interval.low):
        error = [[interval.mean - max(interval.low, low)], [min(interval.high, high) - interval.mean]]
    if along == "y":
        axis.errorbar(at, interval.mean, yerr=error, **style)
    else:
        axis.errorbar(interval.mean, at, xerr=error, **style)
    for side, edge, end, inwards in (("below", low, interval.low, 1), ("above", high, interval.high, -1)):
        if inwards * (end - edge) >= 0 or np.isnan(end):
            continue
        draw_arrowhead(axis, edge, at, side, along, style.get("color"))
        if along == "x":
            align = "left" if inwards == 1 else "right"
            place: dict[str, Any] = {"xytext": (7 * inwards, 2), "textcoords": "offset points", "ha": align, "va": "bottom"}
            axis.annotate(f"to {end:.3g}", (edge, at), fontsize="x-small", **place)


def draw_arrowhead(axis: Axes, edge: float, at: float, side: str, along: str, color: Any) -> None:
    """A mark at the edge of an axis: something goes on `below` or `above` it."""
    marker = {("y", "below"): "v", ("y", "above"): "^", ("x", "below"): "<", ("x", "above"): ">"}[along, side]
    x, y = (at, edge) if along == "y" else (edge, at)
    axis.plot(x, y, marker, color=color, markersize=6, clip_on=False, zorder=4)


def result_label(study: Study) -> str:
    """What the study's results are, in words and with their unit."""
    _, unit = scale(study)
    accuracy = study.metric == "objective" or ACCURACY.fullmatch(study.metric)
    name = accuracy_in_words(study.runs) if accuracy else study.metric
    return f"{name},{unit}" if unit else name


def legend_below(figure: Figure, panels: Axes | Sequence[Axes], most: int | None = None) -> None:
    """One legend under all panels, in as many columns as fit; the figure grows by its rows. It names what any of `panels` has,
    by the first that has it (a number of runs in brackets is that panel's). `most`: entries, the first ones."""
    named: dict[str, tuple[Artist, str]] = {}
    for axis in [panels] if isinstance(panels, Axes) else panels:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(re.sub(r" \(\d+\)$", "", text), (handle, text))
    if entries := list(named.values())[:most]:
        handles, labels = zip(*entries, strict=True)
        widest = max(map(len, labels)) + 9  # 9 characters for the line sample and spaces
        columns = max(1, min(len(labels), int(figure.get_figwidth() * CHARACTERS_PER_INCH) // widest))
        figure.set_figheight(figure.get_figheight() + 0.2 * (math.ceil(len(labels) / columns) - 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)


def scale(study: Study) -> tuple[float, str]:
    """Factor and unit of results: percent of an evaluation's shares, else 1 without a unit."""
    shares = study.metric.startswith(("objective", "eval/"))
    within = all(0 <= value <= 1 for arm in study.arms for value in study.values(arm))
    return (100.0, " %") if shares and within else (1.0, "")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG whose bytes depend on the figure only."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
