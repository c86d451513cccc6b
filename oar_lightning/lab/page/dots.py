"""A dot plot of each headline measure: estimators as rows, means as dots, intervals as lines."""

from __future__ import annotations

import math

from oar_lightning.inspection.page import escape
from oar_lightning.lab.page.record import LabRecord, nan
from oar_lightning.lab.page.svg import Axis, figure, line, text

ROW, LEFT, WIDTH = 17, 130, 400
"""Pixels of a row, of the names, of a figure."""

LETTERS = 17
"""A name is cut after so many letters; its title has all of it."""


def dot_plots(record: LabRecord) -> str:
    """One figure a headline measure; empty without any."""
    found = [_dot_plot(record, key) for key in record.headlines]
    return f'<div class="figures">{"".join(found)}</div>' if found else ""


def _dot_plot(record: LabRecord, key: str) -> str:
    measure = record.results["measures"][key]
    means, chance = measure["means"], nan(measure["chance"])
    numbers = [nan(m[part]) for m in means.values() for part in ("mean", "low", "high")]
    ceilings = {name: nan(value) for name, value in measure["ceiling"].items()}
    x = Axis.around([*numbers, *ceilings.values(), chance], LEFT, WIDTH - 10)
    bottom = ROW * len(record.ranking) + 6
    parts = [line(x(t), 0, x(t), bottom, "grid") + text(x(t), bottom + 14, f"{t:g}", "tick") for t in map(_rounded, x.ticks())]
    if not math.isnan(chance):
        parts.append(line(x(chance), 0, x(chance), bottom, "chance"))
    for row, name in enumerate(record.ranking):
        parts.append(_row(record, name, ROW * row + ROW // 2 + 3, x, means.get(name), ceilings.get(name, math.nan)))
    return figure(f"{key.partition('.')[0]}: {measure['title']}", WIDTH, bottom + 20, parts)


def _row(record: LabRecord, name: str, y: int, x: Axis, mean: dict[str, float | None] | None, ceiling: float) -> str:
    value, low, high = (nan((mean or {}).get(part)) for part in ("mean", "low", "high"))
    kind = " control" if record.is_control(name) else ""
    said = "not defined" if math.isnan(value) else f"{value:.3f}"
    said += "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    said += "" if math.isnan(ceiling) else f", can reach {ceiling:.3f}"
    short = name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
    parts = [f"<title>{escape(name)}: {said}</title>", f'<rect x="0" y="{y - 9}" width="{WIDTH}" height="{ROW}" class="over"/>']
    parts.append(text(LEFT - 8, y + 4, short, "name"))
    if not math.isnan(low):
        parts.append(line(x(low), y, x(high), y, "interval"))
    if not math.isnan(ceiling):
        parts.append(line(x(ceiling), y - 5, x(ceiling), y + 5, "ceiling"))
    if not math.isnan(value):
        parts.append(f'<circle cx="{x(value)}" cy="{y}" r="4"/>')
    return f'<g class="row{kind}">{"".join(parts)}</g>'


def _rounded(tick: float) -> float:
    """Without the last digits of a sum of steps."""
    return round(tick, 9) + 0.0
