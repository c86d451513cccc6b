"""Types and helpers of all figures: axes, legends, scales, and saving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display is needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar_lightning.reporting.runs import Curve

Curves = Mapping[str, Mapping[str, Curve]]
"""Metric -> run id -> curve."""


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


def legend_below(figure: Figure, axis: Axes) -> None:
    """One legend under all panels, in as many columns as fit; the figure grows by its rows."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        widest = max(map(len, labels)) + 9  # 9 characters for the line sample and spaces
        columns = max(1, min(len(labels), int(figure.get_figwidth() * CHARACTERS_PER_INCH) // widest))
        figure.set_figheight(figure.get_figheight() + 0.2 * (math.ceil(len(labels) / columns) - 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)


def scale(values: Sequence[float]) -> tuple[float, str]:
    """Factor and unit of results: percent where all are in [0, 1], else 1 without a unit."""
    return (100.0, " %") if all(0 <= v <= 1 for v in values) else (1.0, "")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG whose bytes depend on the figure only."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
