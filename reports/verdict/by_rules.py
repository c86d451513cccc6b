"""Arms of the study of rules written before its runs (../settle) that have all their pairs at its endpoint: a table and a
figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labels import named
from matplotlib.lines import Line2D
from settled import (
    ROWS,
    TASKS,
    asked_keys,
    asked_leads,
    evidence,
    halves,
    leads_asked,
    rate_leads,
    records,
    rules,
    settled,
    tables,
)

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.figures.drawing import axes, draw_interval, legend_below, save
from oar_lightning.reporting.method_style import GREY
from oar_lightning.reporting.statistics import Interval

Leads = Mapping[tuple[str, str], tuple[int, Interval]]
"""(Task, arm) -> how many pairs there are, and the lead over GRPO in points."""

KINDS: dict[str, dict[str, Any]] = {
    "is told which step went wrong": {"color": "#e08e0b", "marker": "*", "markersize": 11},
    "estimate of credit": {"color": "#1f4fbf", "marker": "o", "markersize": 6},
    "GRPO with something else": {"color": GREY, "marker": "D", "markersize": 6},
    "control": {"color": "#b5449a", "marker": "v", "markersize": 6},
}
_ESTIMATES = (
    *("oar_g", "oar_g_last", "oar_g_joint", "oar_g_in_sharp_gate", "oar_p", "total_effect", "total_effect_fast", "vineppo"),
    *("information_gain", "eighty_twenty", "anchor_states", "turning_point", rules.SHORT, rules.SELDOM),
    *(*rules.ONE_CHANGED, "oar_g_higher"),
    *(rules.ESTIMATE_LONG, rules.SELDOM_LONG, rules.STATES_LONG),
)
_ARMS = (
    (rules.PERFECT, "oracle_in_oars_gate", rules.PERFECT_LONG),
    _ESTIMATES,
    ("grpo_more", "grpo_double", rules.LONG, rules.AS_LONG_AS_OAR_G, rules.PENALTY, "grpo_higher"),
    ("random", "shuffled", "position", *rules.MISPLACED),
)
KIND_OF = {arm: kind for kind, arms in zip(KINDS, _ARMS, strict=True) for arm in arms}


def leads_by_rules() -> Leads:
    """Of arms that have all their pairs."""
    found = {}
    for task in TASKS:
        runs = records.endpoint_runs(ROWS, task)
        base = runs.get(rules.BASELINE, {})
        for arm, own in runs.items():
            pairs, interval = tables.lead(own, base)
            if arm != rules.BASELINE and interval is not None and pairs >= len(rules.OTHER_SEEDS):
                found[task, arm] = pairs, interval
    return found


def ordered(leads: Leads) -> list[str]:
    """The arms, kind by kind."""
    return [arm for arm in KIND_OF if any((task, arm) in leads for task in TASKS)]


def lead_was_asked(task: str, arm: str) -> bool:
    """Whether the arm's lead over GRPO after its 160 updates was, before its runs."""
    return (task, arm, rules.BASELINE, "endpoint") in asked_keys()


def answers() -> dict[tuple[str, str], str]:
    """(Task, arm) -> the answer to what was asked of it beforehand, of its lead over GRPO or of another comparison."""
    found = {(task, "oar_g"): f"above GRPO: {settled(task)[0]}" for task in TASKS}
    found |= {(task, arm): f"half of perfect credit's lead: {'yes' if one.reached else 'no'}" for task, arm, one in halves()}
    again = rules.AT_NO_PASS
    if new := evidence(again.task, again.arm, stage="again"):
        found[again.task, again.arm] += f"; above GRPO, {new.pairs} other pairs: {new.word}, {new.lead:+.1f}"
    places, lasting = leads_asked(rules.PLACES), leads_asked(rules.LASTING)
    found |= {(task, other): f"{named(arm)} above it: {one.verdict}" for (task, arm, other), one in places.items()}
    found |= {(task, arm): f"above {named(other)}: {one.verdict}" for (task, arm, other), one in lasting.items()}
    for (task, arm, other), one in leads_asked(rules.TIMELY).items():
        if arm == "turning_point":  # its own cell has another answer
            found[task, other] = f"{named(arm)} above it: {one.verdict}"
        else:
            found[task, arm] = f"above {named(other)}: {one.verdict}"
    return found | _of_changed_gates() | _of_higher_rates()


def _of_changed_gates() -> dict[tuple[str, str], str]:
    levels, tau = rules.BOTH_LEVELS, rules.STABLE_TAU
    found = {(levels.task, arm): f"OAR-G above it: {one.verdict}" for arm, one in asked_leads(levels).items()}
    near = f"OAR-G within {rules.MARGIN:g} points of it"
    return found | {(tau.task, arm): f"{near}: {one.verdict}" for arm, one in asked_leads(tau, says=rules.same_verdict).items()}


def _of_higher_rates() -> dict[tuple[str, str], str]:
    told = {task: f"OAR-G's lead over GRPO smaller at this rate: {one.verdict}" for task, one in rate_leads().items()}
    return {(task, arm): answer for task, answer in told.items() for arm in rules.AT_HIGHER_RATE}


def by_rules_table(leads: Leads) -> str:
    asked = answers()
    lines = [["arm", "what it is", *(text for task in TASKS for text in (f"`{task}`", "asked beforehand"))]]
    for arm in ordered(leads):
        cells = [named(arm), KIND_OF[arm]]
        for task in TASKS:
            pairs, interval = leads.get((task, arm), (0, None))
            cells += [f"{interval:+.1f} ({pairs} pairs)" if interval else "not run", asked.get((task, arm), "-")]
        lines.append(cells)
    return markdown(lines)


MARGIN = 2.0
"""Points beyond the outermost interval."""


def draw_by_rules(leads: Leads, folder: Path) -> None:
    """Hollow marks: nobody had asked for this lead over GRPO."""
    arms = ordered(leads)[::-1]
    edges = [edge for _, interval in leads.values() for edge in (interval.low, interval.high)]
    left, right = min(edges, default=0.0) - MARGIN, max(edges, default=0.0) + MARGIN
    figure, panels = axes(len(TASKS), height=0.34 * len(arms) + 1.6, sharey=True)
    for axis, task in zip(panels, TASKS, strict=True):
        axis.axvline(0, color=GREY, linewidth=1)
        axis.set_xlim(left, right)
        for place, arm in enumerate(arms):
            if (task, arm) in leads:
                _, interval = leads[task, arm]
                hollow = {} if lead_was_asked(task, arm) else {"markerfacecolor": "white"}
                draw_interval(axis, interval, place, along="x", linestyle="none", capsize=2, **KINDS[KIND_OF[arm]], **hollow)
            else:
                axis.text(left + 1, place, "not run", color="#8a8a8a", fontsize="x-small", va="center")
        axis.set_title(task)
        axis.set_xlabel("accuracy minus GRPO's, points")
    panels[0].set_yticks(range(len(arms)), [named(arm) for arm in arms])
    for name in dict.fromkeys(KIND_OF[arm] for arm in arms[::-1]):
        panels[0].add_line(Line2D([], [], linestyle="none", label=name, **KINDS[name]))
    legend_below(figure, panels[0])
    save(figure, folder / "by_rules.png")
