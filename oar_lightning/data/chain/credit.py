"""Locates the characters of a sampled `chain` completion that decide its outcome, by the task's rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

from oar_lightning.common.ranges import checked
from oar_lightning.data.chain.problem import asked_accounts
from oar_lightning.types import CausalSpans, MathProblem

_STEP = re.compile(r"(?:([A-Z][a-z]+): )?(?<!\d)(\d+)?([+-])(\d+)(=)(\d+)")
_ANSWER = re.compile(r"\\boxed\{(\d+)\}")


def step_ends(problem: MathProblem, completion: str) -> list[int]:
    """Where the steps of a completion end, for `credit.segments.TextCuts`."""
    return [match.end() for match in _STEP.finditer(completion)]


class _Piece(NamedTuple):
    """A number or operator of a step that counts for the answer."""

    span: tuple[int, int]
    text: str
    right: str | None
    """The correct text; None where the problem has no such step."""
    result: bool
    """Whether the text is the step's result."""


@checked("scorer.locate")
class ChainCredit:
    """Locates the causal characters of a completion; the `locate` of `credit.scorers.Oracle`.

    Args:
        which: `causal`: all numbers and operators of the steps that count for the answer, as in
            `ChainSolution.causal_spans`, without the answer. `results`: the numbers after ``=``. `first_error`: the results
            where the final answer is right; else the first number or operator that differs from the problem's, where this
            completion went wrong. A wrong completion without such an error (a step left out, a wrong sum or copy at the end)
            falls back to the results and is not `exact`.

    A completion without a readable step has no spans.
    """

    def __init__(self, which: Literal["causal", "results", "first_error"] = "first_error") -> None:
        choices = {"causal": _all, "results": _results, "first_error": _first_error}
        self.which = which
        self._choose: Callable[[list[_Piece], bool], CausalSpans] = choices[which]

    def __call__(self, problem: MathProblem, completion: str) -> CausalSpans:
        """Raises ValueError for a problem of another task."""
        stated = _ANSWER.findall(completion)
        correct = bool(stated and problem.answer) and int(stated[-1]) == int(problem.answer)
        return self._choose(list(_pieces(problem, completion)), correct)


def _pieces(problem: MathProblem, completion: str) -> Iterator[_Piece]:
    accounts = asked_accounts(problem.question)
    if accounts is None:
        raise ValueError(f"scorer.locate reads problems of data=chain only, got {problem.question[:80]!r}; use another scorer")
    totals = {name: [str(t) for t in accumulate(a.deltas, initial=a.start)] for name, a in accounts.items()}
    done = dict.fromkeys(accounts, 0)
    only_name = next(iter(accounts)) if len(accounts) == 1 else None
    for match in _STEP.finditer(completion):
        name = match[1] or only_name
        if name not in accounts:
            continue  # a distracting person's step, or a step without a name where there are two persons
        step = done[name]
        done[name] += 1
        right: list[str | None] = [None] * 4
        if step < len(accounts[name].deltas):
            delta, total = accounts[name].deltas[step], totals[name]
            right = [total[step], "+" if delta > 0 else "-", str(abs(delta)), total[step + 1]]
        for group, expected in zip((2, 3, 4, 6), right, strict=True):
            if match[group] is not None:  # the first operand may be left out
                yield _Piece(match.span(group), match[group], expected, group == 6)


def _all(pieces: list[_Piece], correct: bool) -> CausalSpans:
    return CausalSpans(tuple(p.span for p in pieces))


def _results(pieces: list[_Piece], correct: bool) -> CausalSpans:
    return CausalSpans(tuple(p.span for p in pieces if p.result))


def _first_error(pieces: list[_Piece], correct: bool) -> CausalSpans:
    results = _results(pieces, correct)
    if correct:
        return results
    wrong = next((p.span for p in pieces if p.text != p.right), None)
    return results._replace(exact=False) if wrong is None else CausalSpans((wrong,))
