"""The first lines of ../VERDICT.md: what is shown of which method, and how near an estimate comes to perfect credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labels import listed, named
from leads import TOLD, Lead, chance, tasks_of

from oar_lightning.common.markdown import markdown

Leads = Mapping[tuple[str, str], Lead]
Said = Mapping[tuple[str, str], str]

NO_ESTIMATE = ("aer", "curriculum", "random", "shuffled", "inverted")
"""Methods that are not told what went wrong and estimate nothing of it: GRPO with something beside it, and controls."""


def quoted(tasks: list[str]) -> str:
    return listed([f"`{task}`" for task in tasks])


def headline(leads: Leads, said: Said, by_rules: Sequence[str] = (), in_time: Sequence[str] = ()) -> str:
    """`by_rules`: estimates that a study of rules written before its runs shows to pay after as many updates as GRPO;
    `in_time`: on which tasks it shows one to pay in GRPO's time."""
    tasks = tasks_of(leads)
    perfect = [task for task in tasks if said.get((task, "oracle")) == "above"]
    estimates = [
        f"{named(method)} on `{task}`" for (task, method), word in said.items() if word == "above" and method not in TOLD
    ]
    estimates += [f"{one}, by rules written before its runs" for one in by_rules]
    return (
        f"**After as many updates, where credit is perfect: {'yes, on ' + quoted(perfect) if perfect else 'not shown'}. "
        f"Where it is estimated: {'yes, ' + listed(estimates) if estimates else 'not shown so far'}. "
        f"In as much time: {listed(in_time) if in_time else 'not shown so far'}.**"
    )


def by_verdict(said: Said, word: str, told: bool | None = None) -> str:
    """Methods with a verdict and the tasks on which they have it."""
    found: dict[str, list[str]] = {}
    for (task, method), own in said.items():
        if own == word and told in (None, method in TOLD):
            found.setdefault(method, []).append(task)
    return "; ".join(f"{named(method)} on {quoted(tasks)}" for method, tasks in found.items()) or "none"


def short(
    leads: Leads, said: Said, by_rules: Sequence[str] = (), oar_g: Sequence[str] = (), corrected: str = "none was asked"
) -> str:
    """What is shown, in a few lines. `oar_g`: whether it beats GRPO by such rules, task by task; `corrected`: what is left of
    all that was asked by them, corrected for how much that is."""
    by_chance, count, ruled = chance(), len(leads), listed(by_rules)
    return "\n".join(
        [
            f"- **Shown to beat GRPO by the study families, and told of the error**: {by_verdict(said, 'above', told=True)}.",
            f"- **Shown to beat GRPO by that study, and not told**: {by_verdict(said, 'above', told=False)}.",
            f"- **Shown by rules written before its runs to gain half of what perfect credit gains**: {ruled}.",
            f"- **OAR-G above GRPO, by rules written before the runs**: {listed(oar_g)}.",
            f"- **All that was asked by rules written before the runs**: {corrected}.",
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
