"""What decides a completion of a generated task, piece by piece, and which of the pieces get credit."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple

from oar_lightning.common.ranges import checked
from oar_lightning.types import CausalSpans, MathProblem

_ANSWER = re.compile(r"\\boxed\{([0-9]{1,9}(?:, ?[0-9]{1,9}){0,99})\}")

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30}|/[0-9]{0,29}[1-9])?")

Which = Literal["causal", "results", "first_error", "right", "wrong"]


class Piece(NamedTuple):
    """A name, number or operator of a step that counts for the answer."""

    span: tuple[int, int]
    wrong: bool
    """Whether the completion has left the right way by here."""
    result: bool
    """Whether it is the step's result."""
    decision: bool
    """Whether it is one of those in which the task's policy errs."""
    form: bool = False
    """Whether it is no part of a step: a plan's name, or where a line ceases to be a step."""


@checked("scorer.locate")
class PieceCredit(ABC):
    """Locates the causal characters of a completion; a `locate` of `credit.scorers.Oracle`.

    Args:
        which: `causal`: all pieces. `results`: the steps' results. `first_error`: the decisions where the final answer is
            right; else the first wrong piece, where this completion went wrong. A wrong completion without one (a step left
            out, a wrong sum or copy at the end) falls back to the decisions and is not `exact`. `right`: the decisions up to
            the first wrong piece. `wrong`: that piece.

    A completion without a readable step has no spans.
    """

    task: str
    """The name of the task's data config."""

    def __init__(self, which: Which = "first_error") -> None:
        self.which = which

    @abstractmethod
    def pieces(self, problem: MathProblem, completion: str) -> list[Piece] | None:
        """The pieces in their order in the text; None for a problem of another task."""
        ...

    def spans(self, problem: MathProblem, completion: str) -> CausalSpans | None:
        """The chosen pieces' spans; None for a problem of another task."""
        pieces = self.pieces(problem, completion)
        if pieces is None:
            return None
        stated = _ANSWER.findall(completion)
        correct = bool(stated) and (numbers := _numbers(problem.answer)) is not None and _numbers(stated[-1]) == numbers
        return _CHOICES[self.which](pieces, correct)

    def __call__(self, problem: MathProblem, completion: str) -> CausalSpans:
        """Raises ValueError for a problem of another task."""
        if (spans := self.spans(problem, completion)) is None:
            raise foreign(problem, self.task)
        return spans


def _numbers(answer: str) -> list[Fraction] | None:
    """None for what is no list of numbers."""
    numbers = [number.strip() for number in answer.split(",")]
    return [Fraction(number) for number in numbers] if all(map(_NUMBER.fullmatch, numbers)) else None


def foreign(problem: MathProblem, tasks: str, key: str = "scorer.locate", other: str = "another scorer") -> ValueError:
    """The error for a problem that none of the `tasks` knows. `other`: what to use in its place."""
    return ValueError(f"{key} reads problems of data={tasks} only, got {problem.question[:80]!r}; use {other}")


def _all(pieces: list[Piece], correct: bool) -> CausalSpans:
    return CausalSpans(tuple(p.span for p in pieces if not p.form))


def _results(pieces: list[Piece], correct: bool) -> CausalSpans:
    return CausalSpans(tuple(p.span for p in pieces if p.result))


def _first_error(pieces: list[Piece], correct: bool) -> CausalSpans:
    decisions = CausalSpans(tuple(p.span for p in pieces if p.decision))
    if correct:
        return decisions
    wrong = next((p.span for p in pieces if p.wrong), None)
    return decisions._replace(exact=False) if wrong is None else CausalSpans((wrong,))


def _right(pieces: list[Piece], correct: bool) -> CausalSpans:
    before = itertools.takewhile(lambda piece: not piece.wrong, pieces)
    return CausalSpans(tuple(p.span for p in before if p.decision))


def _wrong(pieces: list[Piece], correct: bool) -> CausalSpans:
    return CausalSpans(tuple(p.span for p in pieces if p.wrong)[:1], exact=correct or any(p.wrong for p in pieces))


_CHOICES: dict[str, Callable[[list[Piece], bool], CausalSpans]] = {
    "causal": _all,
    "results": _results,
    "first_error": _first_error,
    "right": _right,
    "wrong": _wrong,
}
