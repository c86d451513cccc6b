"""What a second prompt may tell of a problem or of a completion's group; None where there is nothing to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from oar_lightning.credit.component import group_advantages_of
from oar_lightning.data.hints import telling, telling_solution, telling_wrong
from oar_lightning.types import Rollouts

HintKind = Literal["answer", "solution", "correct_sibling", "wrong_sibling", "feedback"]
Outcome = Literal["correct", "wrong"]


def siblings(rollouts: Rollouts, row: int, outcome: Outcome) -> list[int]:
    """The other completions of a row's group with an outcome, as their group advantages' signs tell it: the row's successor
    first, and round to the row again. Of those with the same text there is one, and none with the row's own."""
    sign = 1 if outcome == "correct" else -1
    advantages, size = group_advantages_of(rollouts), rollouts.group_size
    first = row - row % size
    others = [first + (row - first + k) % size for k in range(1, size)]
    told = {completion_hint(rollouts, row)}
    found = []
    for other in others:
        if float(advantages[other]) * sign > 0 and (hint := completion_hint(rollouts, other)) not in told:
            told.add(hint)
            found.append(other)
    return found


def completion_hint(rollouts: Rollouts, row: int) -> str:
    """A completion as a hint."""
    return telling_solution(rollouts.completions[row])


def _answer(rollouts: Rollouts, row: int) -> str | None:
    gold = rollouts.problems[row].answer.strip()
    return telling(gold) if gold else None


def _solution(rollouts: Rollouts, row: int) -> str | None:
    solution, answer = rollouts.problems[row].solution.strip(), _answer(rollouts, row)
    return "\n".join(filter(None, (solution, answer))) if solution else None


def _sibling(outcome: Outcome) -> Callable[[Rollouts, int], str | None]:
    def hint(rollouts: Rollouts, row: int) -> str | None:
        return next((completion_hint(rollouts, other) for other in siblings(rollouts, row, outcome)), None)

    return hint


def _feedback(rollouts: Rollouts, row: int) -> str | None:
    """Nothing where the completion is no worse than its group, or states the gold answer as it is written."""
    answer = rollouts.answers[row]
    if float(group_advantages_of(rollouts)[row]) >= 0 or answer == rollouts.problems[row].answer.strip():
        return None
    return "An attempt had no final answer." if answer is None else telling_wrong(answer)


HINTS: dict[HintKind, Callable[[Rollouts, int], str | None]] = {
    "answer": _answer,
    "solution": _solution,
    "correct_sibling": _sibling("correct"),
    "wrong_sibling": _sibling("wrong"),
    "feedback": _feedback,
}
"""`answer`: the gold answer. `solution`: the reference solution, then the gold answer. `correct_sibling`, `wrong_sibling`:
another completion of the group. `feedback`: the answer of a wrong completion, and that it is wrong."""

OF_GROUPS: frozenset[HintKind] = frozenset({"correct_sibling", "wrong_sibling"})
"""The kinds that read other completions of the group."""
