"""Claims that one method does better than another: the study with rules of its own and the families side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from labels import listed
from leads import Lead, decided_by, families, lead, results_of, verdicts
from settled import evidence, rules


class Claim(NamedTuple):
    text: str
    verdict: str
    figures: str
    n: str
    tested: str
    """Fairly, weakly or not, and why."""
    made: str
    """The command that makes the runs or measures."""
    page: str


FAIRLY = "fairly: as many tuning runs each, on other seeds"
ON_EACH = ("asides", "graph", rules.AGAIN.task, "one_step")
"""The tasks of claims that both studies have run."""


EXPLORED = "explored: as many tuning runs each, but nobody had asked"
CHOSE = "weakly: two of the five pairs chose the rates, 128 problems"


def link(folder: str) -> str:
    return f"[{folder.lstrip('-0123456789')}]({folder}/README.md)"


def commands_of(folder: str) -> str:
    return f"[commands of {folder.lstrip('-0123456789')}]({folder}/README.md#commands)"


def compared(
    text: str, method: str, over: str, words: Mapping[tuple[str, str], str], leads: Mapping[tuple[str, str], Lead]
) -> Claim:
    """Whether one method ends above another, task by task: the study with rules of its own decides where it has the pairs, and
    the families' five pairs stand beside it. `words`, `leads`: (task, method) -> those of the families."""
    verdicts, figures, counts, tested, pages = [], [], [], [], []
    for task in ON_EACH:
        own = evidence(task, method, over, "again" if task == rules.AGAIN.task else "endpoint")
        five = leads.get((task, method))
        said = words.get((task, method), "")
        shown = f"{five.every:+.1f}{decided_by(five)}" if five else ""
        if own:
            verdicts.append(f"{task} {own.word}{'' if own.asked else ' (explored)'}")
            figures.append(f"{task} {own.lead:+.1f}" + (f" (families, 5 pairs: {shown}, {said})" if five else ""))
            counts.append(f"{task} {own.pairs} pairs")
            tested.append((FAIRLY if own.asked else EXPLORED, task))
        elif five:
            verdicts.append(f"{task} {said}")
            figures.append(f"{task} {shown}")
            counts.append(f"{task} 5 pairs")
            tested.append((CHOSE, task))
        pages += ["settle"] * bool(own) + ["families"] * bool(five)
    pages = sorted(set(pages), reverse=True)
    ways = {way: [task for found, task in tested if found == way] for way in (FAIRLY, EXPLORED, CHOSE)}
    how = [f"{listed(tasks)} {way}" for way, tasks in ways.items() if tasks]
    cells = ("; ".join(verdicts), "; ".join(figures), ", ".join(counts), "; ".join(how))
    return Claim(text, *cells, ", ".join(map(commands_of, pages)), ", ".join(map(link, pages)))


def against(said: Sequence[tuple[str, str, str]]) -> list[Claim]:
    """Claims that one method does better than another, by the rule for leads over GRPO, with a correction of their own."""
    found = {
        (over, task, method): one
        for _, method, over in said
        for task in families.TASKS
        if (one := lead(results_of(task), task, method, over))
    }
    words = verdicts(found)
    return [
        compared(
            text,
            method,
            over,
            {(task, own): word for (of, task, own), word in words.items() if of == over},
            {(task, own): one for (of, task, own), one in found.items() if of == over},
        )
        for text, method, over in said
    ]
