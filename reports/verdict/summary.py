"""What the study of families says in ../VERDICT.md: what is shown of which method, and how near one comes to perfect credit."""

from __future__ import annotations

from collections.abc import Mapping

from labels import listed, named
from leads import TOLD, Lead, chance, tasks_of

from oar_lightning.common.markdown import markdown

Leads = Mapping[tuple[str, str], Lead]
Said = Mapping[tuple[str, str], str]

NO_ESTIMATE = ("aer", "curriculum", "random", "shuffled", "inverted")
"""Methods that are not told what went wrong and estimate nothing of it: GRPO with something beside it, and controls."""


def by_verdict(said: Said, word: str, told: bool | None = None) -> str:
    """Methods with a verdict and the tasks on which they have it."""
    found: dict[str, list[str]] = {}
    for (task, method), own in said.items():
        if own == word and told in (None, method in TOLD):
            found.setdefault(method, []).append(task)
    quoted = {method: listed([f"`{task}`" for task in tasks]) for method, tasks in found.items()}
    return "; ".join(f"{named(method)} on {tasks}" for method, tasks in quoted.items()) or "none"


def shown(leads: Leads, said: Said) -> str:
    """Which methods are above or below GRPO, in a few lines."""
    by_chance, count = chance(), len(leads)
    return "\n".join(
        [
            f"- **Shown to beat GRPO, and told of the error**: {by_verdict(said, 'above', told=True)}.",
            f"- **Shown to beat GRPO, and not told**: {by_verdict(said, 'above', told=False)}.",
            f"- **A sign of a lead**: {by_verdict(said, 'sign of a lead')}.",
            f"- **Shown to end below GRPO**: {by_verdict(said, 'below')}.",
            f"- **A sign of a deficit**: {by_verdict(said, 'sign of a deficit')}.",
            f"- **By chance**: without any difference {100 * by_chance:.0f} % of comparisons have a sign or more, since either "
            f"of two intervals will do. Of {count} comparisons these are {by_chance * count:.1f}, half of them leads.",
        ]
    )


def half(leads: Leads, said: Said) -> str:
    """How near the best estimate comes to half of perfect credit's lead, where perfect credit leads."""
    rows = [["task", "perfect credit's lead", "half of it", "the best estimate that is not told", "its lead", "in % of half"]]
    rows[0].append("estimates whose interval ends below half")
    for task in tasks_of(leads):
        own = {method: one.every for (of, method), one in leads.items() if of == task and method not in (*TOLD, *NO_ESTIMATE)}
        if said.get((task, "oracle")) != "above" or not own:
            continue
        perfect = leads[task, "oracle"].every
        goal, best = perfect.mean / 2, max(own, key=lambda method: own[method].mean)
        below = sum(interval.high < goal for interval in own.values())
        rows.append([f"`{task}`", f"{perfect:+.1f}", f"{goal:+.1f}", named(best), f"{own[best]:+.1f}"])
        rows[-1] += [f"{100 * own[best].mean / goal:.0f}", f"{below} of {len(own)}"]
    return (
        markdown(rows)
        if len(rows) > 1
        else "Perfect credit is not shown to lead on a task on which an estimate was run to the end."
    )
