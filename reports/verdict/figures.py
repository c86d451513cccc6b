"""The figures of ../VERDICT.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from leads import NAMES, REPORTS, TOLD, Lead, by_rate, families, mean_over, tasks_of

from oar_lightning.reporting.figures.drawing import axes
from oar_lightning.reporting.statistics import Interval


def reach(interval: Interval) -> list[list[float]]:
    """Below and above the mean, as error bars want it."""
    return [[interval.mean - interval.low], [interval.high - interval.mean]]


def draw_leads(leads: Mapping[tuple[str, str], Lead], folder: Path) -> None:
    tasks = tasks_of(leads)
    methods = sorted({method for _, method in leads}, key=lambda m: mean_over(leads, m))
    figure, panels = axes(len(tasks), height=0.32 * len(methods) + 1.2, sharey=True)
    for axis, task in zip(panels, tasks, strict=True):
        for place, method in enumerate(methods):
            if one := leads.get((task, method)):
                colour = "tab:orange" if method in TOLD else "tab:blue"
                axis.errorbar(one.every.mean, place, xerr=reach(one.every), fmt="o", color=colour, capsize=3)
        axis.axvline(0, color="gray")
        axis.set_title(task)
        axis.set_xlabel("accuracy minus GRPO's, points")
        axis.set_xlim(-30, 20)
    panels[0].set_yticks(range(len(methods)), [NAMES.get(method, method) for method in methods])
    figure.savefig(folder / "leads.png", dpi=110)


def draw_rates(folder: Path) -> None:
    tasks = ("asides", "one_step")
    figure, panels = axes(len(tasks), height=3.6, sharey=True)
    for axis, task in zip(panels, tasks, strict=True):
        for method, style in (("oracle", "o-"), ("oar_g", "s-"), ("oar_p", "^-"), ("shuffled", "x--")):
            found = by_rate(task, method)
            means = [value.mean if isinstance(value, Interval) else value for value in found.values()]
            axis.plot([f"{lr:g}" for lr in found], means, style, label=NAMES[method])
        axis.axhline(0, color="gray")
        axis.set_title(task)
        axis.set_xlabel("learning rate of both")
    panels[0].set_ylabel("accuracy minus GRPO's\nat the same rate, points")
    panels[0].legend(fontsize="small")
    figure.savefig(folder / "rates.png", dpi=110)


def draw_costs(leads: Mapping[tuple[str, str], Lead], folder: Path) -> None:
    seconds = json.loads((REPORTS / "families" / "cost.json").read_text(encoding="utf-8"))
    figure, (axis,) = axes(height=3.8)
    axis.plot(1.0, 0.0, "o", color="black")
    axis.annotate("GRPO", (1.0, 0.0), xytext=(6, 4), textcoords="offset points")
    for method, own in seconds.items():
        if one := leads.get(("asides", method)):
            cost = own / seconds[families.BASELINE]
            axis.errorbar(cost, one.every.mean, yerr=reach(one.every), fmt="o", capsize=3, label=NAMES[method])
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axis.axhline(0, color="gray")
    axis.set_xlabel("processor time of a step, in GRPO steps")
    axis.set_ylabel("accuracy minus GRPO's on asides, points")
    axis.set_xlim(left=0)
    axis.set_ylim(-12, 12)
    figure.savefig(folder / "costs.png", dpi=110)
