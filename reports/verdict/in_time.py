"""Accuracy against the time that training took, of arms of the study of rules (../settle)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from by_rules import KINDS
from labels import style
from settled import TASKS, records, rules, tables

from oar_lightning.reporting.figures.drawing import axes, legend_below, save
from oar_lightning.reporting.statistics import Interval, mean_interval

LINES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "GRPO": ((rules.BASELINE, rules.LONG), KINDS["GRPO with something else"]),
    "turning point": ((rules.SHORT, "turning_point", rules.ESTIMATE_LONG), style("turning_point")),
    "turning point, seldom searched": ((rules.SELDOM, rules.SELDOM_LONG), {"color": "#7a4fb0", "marker": "s"}),
    "shared states": (("anchor_states", rules.STATES_LONG), style("anchor_states")),
    "perfect credit (is told)": ((rules.PERFECT, rules.PERFECT_LONG), KINDS["is told which step went wrong"]),
}
"""Name in words -> arms that differ in their updates alone, and how they look."""
WITHOUT_PASSES = (rules.BASELINE, rules.LONG, rules.PERFECT, rules.PERFECT_LONG)
"""Arms whose steps take GRPO's time."""


class Place(NamedTuple):
    """Of an arm: updates of GRPO that take as long, and its accuracy in %."""

    time: float
    accuracy: Interval


def places(rows: Sequence[Any], task: str, arms: Sequence[str]) -> list[Place]:
    """Of those that have all their pairs, by time."""
    runs, found = records.endpoint_runs(rows, task), []
    for arm in arms:
        own = [runs[arm][seed] for seed in rules.OTHER_SEEDS if seed in runs.get(arm, {})]
        if len(own) == len(rules.OTHER_SEEDS):
            price = 1.0 if arm in WITHOUT_PASSES else tables.step_price(rows, task, arm)
            accuracy = mean_interval([100 * run.accuracy for run in own], bootstrap_from=math.inf)
            found.append(Place(rules.updates(task, arm) * price, accuracy))
    return sorted(found)


def draw_in_time(rows: Sequence[Any], folder: Path) -> None:
    figure, panels = axes(len(TASKS), height=4.2)
    for axis, task in zip(panels, TASKS, strict=True):
        for aside, (name, (arms, look)) in zip((0, 2, -2, 4, -4), LINES.items(), strict=True):
            found = places(rows, task, arms)
            means = np.array([place.accuracy.mean for place in found])
            low, high = (np.array([getattr(place.accuracy, end) for place in found]) for end in ("low", "high"))
            times = [place.time + aside for place in found]
            axis.errorbar(times, means, [means - low, high - means], label=name, capsize=2, linewidth=1, elinewidth=1.2, **look)
        axis.set_title(task)
        axis.set_xlabel("time of training, in updates of GRPO")
        axis.set_ylabel("accuracy at temperature 1, %")
    legend_below(figure, panels[0])
    save(figure, folder / "in_time.png")
