"""The curves of removal and of stability, as small figures with one legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oar_lightning.inspection.page import escape
from oar_lightning.lab.page.record import LabRecord, nan
from oar_lightning.lab.page.svg import Axis, figure, line, text

WIDTH, HEIGHT, LEFT, BOTTOM = 330, 200, 46, 22

COLORS = 8
"""Colours of the style, `c0` and so on; from the ninth estimator on lines are dashed."""


def curve_plots(record: LabRecord) -> str:
    """A legend and one figure a curve; empty without any."""
    curves: Mapping[str, Any] = record.results.get("curves") or {}
    named = {name for curve in curves.values() for name in curve["outcome"]}
    styles = line_styles([n for n in record.ranking if n in named] + sorted(named - set(record.ranking)), record)
    if not styles:
        return ""
    legend = "".join(
        f'<label class="key" data-name="{escape(name)}"><svg width="26" height="10">{line(0, 5, 26, 5, style)}</svg>'
        f"{escape(name)}</label>"
        for name, style in styles.items()
    )
    plots = "".join(_curve(curve, styles) for curve in curves.values())
    note = "Across: the share of the tokens, or what else the title says. A name here picks out its lines."
    return f'<p class="meta">{note}</p><div class="legend keys">{legend}</div><div class="figures">{plots}</div>'


def line_styles(names: Sequence[str], record: LabRecord) -> dict[str, str]:
    """The class of each estimator's line: controls are grey and dotted, the others have a colour each, then dashes too."""
    styles, number = {}, 0
    for name in names:
        if record.is_control(name):
            styles[name] = "curve control"
        else:
            styles[name] = f"curve c{number % COLORS}" + " dashed" * (number // COLORS % 2)
            number += 1
    return styles


def _curve(curve: Mapping[str, Any], styles: Mapping[str, str]) -> str:
    fraction = [nan(v) for v in curve["fraction"]]
    outcome = {name: [nan(v) for v in values] for name, values in curve["outcome"].items()}
    x = Axis.around(fraction, LEFT, WIDTH - 8)
    y = Axis.around([v for values in outcome.values() for v in values], HEIGHT - BOTTOM, 6)
    parts = [
        line(LEFT, y(t), WIDTH - 8, y(t), "grid") + text(LEFT - 5, float(y(t)) + 4, f"{round(t, 9) + 0.0:g}", "name tick")
        for t in y.ticks()
    ]
    parts += [text(x(t), HEIGHT - BOTTOM + 14, f"{round(t, 9) + 0.0:g}", "tick") for t in x.ticks()]
    order = sorted(outcome, key=lambda name: "control" not in styles[name])
    parts += [_line(name, styles[name], zip(fraction, outcome[name], strict=True), x, y) for name in order]
    return figure(curve["title"], WIDTH, HEIGHT, parts)


def _line(name: str, style: str, points: Any, x: Axis, y: Axis) -> str:
    """A line that is broken where the outcome is not a number; a dot at each point."""
    known = [(x(a), y(b)) if math.isfinite(a) and math.isfinite(b) else None for a, b in points]
    runs, path = " ".join("|" if p is None else ",".join(p) for p in known).split("|"), ""
    for run in (run.split() for run in runs):
        path += f"M{' L'.join(run)}" if run else ""
    dots = "".join(f'<circle cx="{p[0]}" cy="{p[1]}" r="2"/>' for p in known if p)
    return f'<g class="{style}" data-name="{escape(name)}"><title>{escape(name)}</title><path d="{path}"/>{dots}</g>'
