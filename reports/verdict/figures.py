"""The figures of ../VERDICT.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from labels import TASKS, named, rate, style
from leads import REPORTS, TOLD, Lead, by_rate, families, mean_over, missing, tasks_of
from matplotlib.axes import Axes

from oar_lightning.reporting.figures.drawing import axes, draw_arrowhead, draw_interval, legend_below, save
from oar_lightning.reporting.method_style import GREY
from oar_lightning.reporting.statistics import pareto_front

Leads = Mapping[tuple[str, str], Lead]
BAR: dict[str, Any] = {"linestyle": "none", "capsize": 2, "elinewidth": 1.2}
LEFT_AND_RIGHT = (-30, 20)
STAR = 11


def look(method: str) -> dict[str, Any]:
    return {**BAR, **style(method), "markersize": STAR if method in TOLD else 6}


def draw_leads(leads: Leads, folder: Path) -> None:
    tasks = tasks_of(leads)
    methods = sorted({method for _, method in leads}, key=lambda m: (mean_over(leads, m), m))
    figure, panels = axes(len(tasks), height=0.32 * len(methods) + 1.2, sharey=True)
    for axis, task in zip(panels, tasks, strict=True):
        axis.axvline(0, color=GREY, linewidth=1)
        axis.set_xlim(*LEFT_AND_RIGHT)
        for place, method in enumerate(methods):
            if one := leads.get((task, method)):
                _draw_lead(axis, one, place)
            else:
                axis.text(LEFT_AND_RIGHT[0] + 1, place, missing(task, method), color="#8a8a8a", fontsize="x-small", va="center")
        axis.set_title(TASKS.get(task, task))
        axis.set_xlabel("accuracy minus GRPO's, points")
    panels[0].set_yticks(range(len(methods)), [named(method) for method in methods])
    save(figure, folder / "leads.png")


def _draw_lead(axis: Axes, one: Lead, place: int) -> None:
    """A lead with its interval; a number says how far either goes beyond an edge."""
    low, high = LEFT_AND_RIGHT
    interval = one.every
    if low <= interval.mean <= high:
        draw_interval(axis, interval, place, along="x", **look(one.method))
        return
    side, edge, inwards, align = ("below", low, 1, "left") if interval.mean < low else ("above", high, -1, "right")
    draw_arrowhead(axis, edge, place, side, "x", style(one.method)["color"])
    axis.text(edge + 0.8 * inwards, place + 0.08, f"{interval:.1f}", fontsize="x-small", ha=align, va="bottom")


SPOKEN_OF = ("oracle", "oar_g", "oar_p", "shuffled")
"""Methods of the figure over rates."""

DOWN_AND_UP = (-27, 25)


def draw_rates(folder: Path) -> None:
    tasks = [task for task in families.TASKS if any(by_rate(task, method) for method in SPOKEN_OF)]
    figure, panels = axes(len(tasks), height=4.4, sharey=True)
    for axis, task in zip(panels, tasks, strict=True):
        axis.axhline(0, color=GREY, linewidth=1)
        axis.set_ylim(*DOWN_AND_UP)
        rates = sorted({lr for method in SPOKEN_OF for lr in by_rate(task, method)})
        for number, method in enumerate(SPOKEN_OF):
            _draw_rates(axis, method, by_rate(task, method), rates, 0.2 * (number - 1.5))
        axis.set_xticks(range(len(rates)), [rate(lr) for lr in rates])
        axis.set_xlim(-0.55, len(rates) - 0.45)
        axis.text(-0.5, DOWN_AND_UP[0] + 1.2, "n", color=GREY, fontsize="small", style="italic")
        axis.set_title(TASKS.get(task, task))
        axis.set_xlabel("learning rate of both")
        axis.grid(False, axis="x")
    panels[0].set_ylabel("accuracy minus GRPO's\nat the same rate, points")
    legend_below(figure, panels[0])
    save(figure, folder / "rates.png")


def _draw_rates(
    axis: Axes, method: str, found: Mapping[float, Mapping[int, float]], rates: Sequence[float], offset: float
) -> None:
    """The differences of each rate as dots, their means joined, and how many there are."""
    low, high = DOWN_AND_UP
    own = style(method)
    for lr, pairs in found.items():
        place = rates.index(lr) + offset
        values = [*pairs.values()]
        axis.plot([place] * len(values), values, ".", color=own["color"], markersize=5, alpha=0.6)
        axis.text(place, low + 1.2, str(len(values)), color=own["color"], fontsize="small", ha="center")
        for value in values:
            if value < low or value > high:
                side, edge = ("below", low) if value < low else ("above", high)
                draw_arrowhead(axis, edge, place, side, "y", own["color"])
                at = edge + (3.2 if value < low else -2.2)
                axis.text(place + 0.07, at, f"{value:+.0f}", color=own["color"], fontsize="small")
    places = [rates.index(lr) + offset for lr in found]
    means = [float(np.mean([*pairs.values()])) for pairs in found.values()]
    axis.plot(
        places,
        means,
        color=own["color"],
        marker=own["marker"],
        markersize=look(method)["markersize"],
        linewidth=1,
        label=named(method),
    )


COST_TASK = "asides"
NO_PASSES = (families.BASELINE, "oracle", "oracle_results", "capo", "random", "aer", "curriculum", "action_mask")
"""Methods whose scores take no forward pass. Those of another model, as PRIME's, are counted nowhere."""

OTHER_SETTINGS = ("vineppo",)
"""Methods that the lab measured with other settings than the runs have."""


def processor_time() -> dict[str, float]:
    """Method -> time of a step, in GRPO's, of those that were timed."""
    seconds = json.loads((REPORTS / "families" / "cost.json").read_text(encoding="utf-8"))
    return {method: own / seconds[families.BASELINE] for method, own in seconds.items()}


def passes() -> dict[str, float]:
    """Method -> forward passes of the batch that scoring takes: as its runs logged, else as the lab counted them."""
    lab = json.loads((REPORTS / "lab_methods" / f"{COST_TASK}.json").read_text(encoding="utf-8"))
    counted = {name: own["forward_equivalents"] for part in lab.values() for name, own in part["estimators"].items()}
    found = {name: count for name, count in counted.items() if count is not None and name not in OTHER_SETTINGS}
    runs: dict[str, list[float]] = {}
    for row in families.read_csv(REPORTS / "families" / "runs.csv"):
        if row.variant == COST_TASK and not np.isnan(row.forward_equivalents):
            runs.setdefault(row.method, []).append(row.forward_equivalents)
    return found | dict.fromkeys(NO_PASSES, 0.0) | {method: float(np.mean(own)) for method, own in runs.items()}


LOW_AND_HIGH = (-13, 12)


def draw_costs(leads: Leads, folder: Path) -> None:
    figure, panels = axes(2, height=5.0, sharey=True)
    panels[0].set_ylabel(f"accuracy minus GRPO's on {TASKS.get(COST_TASK, COST_TASK)}, points")
    panels[0].set_ylim(*LOW_AND_HIGH)
    panels[0].set_xlabel("processor time of a step, in GRPO steps")
    panels[1].set_xlabel("forward passes of scoring a step")
    for axis, cost in zip(panels, (processor_time(), passes()), strict=True):
        own = {method: one for (task, method), one in leads.items() if task == COST_TASK and method in cost}
        _draw_costs(axis, own, cost)
    panels[0].set_xlim(0, 1.05 * panels[0].get_xlim()[1])
    panels[1].set_xscale("symlog", linthresh=1)
    panels[1].set_xticks([0, 1, 2, 5, 10, 20], ["0", "1", "2", "5", "10", "20"])
    panels[1].set_xlim(-0.6, 40)
    handles = {label: handle for axis in panels for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize="small", frameon=False)
    save(figure, folder / "costs.png")


def side_by_side(cost: Mapping[str, float]) -> dict[str, float]:
    """Places of methods on an axis of costs: those with the same cost are moved apart a little."""
    found = {}
    for value in set(cost.values()):
        same = [method for method in cost if cost[method] == value]
        for number, method in enumerate(same):
            found[method] = value + (number - (len(same) - 1) / 2) * (0.05 * value or 0.11)
    return found


def _draw_costs(axis: Axes, leads: Mapping[str, Lead], cost: Mapping[str, float]) -> None:
    """Leads against cost, the front of those that are not told, and arrows at the edge for what lies below."""
    low, _ = LOW_AND_HIGH
    axis.axhline(0, color=GREY, linewidth=1)
    points = {families.BASELINE: (cost[families.BASELINE], 0.0)}
    points |= {method: (cost[method], one.every.mean) for method, one in leads.items() if method not in TOLD}
    front = [[*points.values()][place] for place in pareto_front(*zip(*points.values(), strict=True))]
    right = max(cost[method] for method in (families.BASELINE, *leads))
    ends = [*front, (right, front[-1][1])]
    axis.step(*zip(*ends, strict=True), where="post", color=GREY, linewidth=1, linestyle=":", label="front of those not told")
    places = side_by_side({method: cost[method] for method in (families.BASELINE, *leads)})
    base: dict[str, Any] = {**style(families.BASELINE), "label": named(families.BASELINE)}
    axis.plot(places[families.BASELINE], 0, linestyle="none", markersize=7, zorder=4, **base)
    below = []
    for method, one in sorted(leads.items(), key=lambda item: -item[1].every.mean):
        if one.every.mean >= low:
            draw_interval(axis, one.every, places[method], label=named(method), **{**look(method), "elinewidth": 0.7})
        else:
            below.append(f"{named(method)} {one.every.mean:+.0f}")
            draw_arrowhead(axis, low, places[method], "below", "y", style(method)["color"])
    if below:
        axis.text(0.98, 0.02, "below: " + ", ".join(below), transform=axis.transAxes, fontsize="small", ha="right")
