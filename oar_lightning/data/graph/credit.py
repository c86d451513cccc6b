"""Locates the characters of a sampled `graph` completion that decide its outcome, by the task's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oar_lightning.data.graph.problem import GraphProblem, read_question
from oar_lightning.data.pieces import Piece, PieceCredit
from oar_lightning.types import MathProblem

_STEP = re.compile(
    r"\b(?P<name>[a-z]+) is (?P<left>[a-z]+) (?P<sign>[-+*]) (?P<right>[a-z]+); "
    r"(?P=left)=(?P<left_value>[0-9]{1,9}); (?P=right)=(?P<right_value>[0-9]{1,9}); (?P=name)=(?P<result>[0-9]{1,9})(?![0-9])"
)


def step_ends(problem: MathProblem, completion: str) -> list[int]:
    """Where the steps of a completion end, for `credit.segments.TextCuts`."""
    return [match.end() for match in _STEP.finditer(completion)]


class GraphCredit(PieceCredit):
    """Operands, operators and numbers of the steps that the answer depends on; decisions are the operands' names and operators.

    A piece is wrong if neither it nor any later one, continued without a fault, leads to the right answer. A slip that does not
    matter, or that a later one makes good, is none.
    """

    task = "graph"

    def pieces(self, problem: MathProblem, completion: str) -> list[Piece] | None:
        graph = read_question(problem.question)
        if graph is None:
            return None
        pieces = list(_pieces(graph, completion))
        last_right = max((i for i, piece in enumerate(pieces) if not piece.wrong), default=-1)
        return [piece._replace(wrong=i > last_right) for i, piece in enumerate(pieces)]


def _pieces(problem: GraphProblem, completion: str) -> Iterator[Piece]:
    stated: dict[str, int] = {}
    for step in _STEP.finditer(completion):
        name = step["name"]
        if name not in problem.formulas:
            continue
        if name in problem.needed:
            for part, value in _values(problem, stated, step):
                wrong = value is None or problem.values({**stated, name: value})[problem.asked] != problem.answer
                yield Piece(step.span(part), wrong, result=part == "result", decision=part in ("left", "sign", "right"))
        stated[name] = int(step["result"])


def _values(problem: GraphProblem, stated: dict[str, int], step: re.Match[str]) -> Iterator[tuple[str, int | None]]:
    """The parts of a step, each with the step's value if all after it is right; None where a quantity is unknown."""
    known = problem.values(stated)
    formula = problem.formulas[step["name"]]
    left: int | None
    right: int | None
    left, sign, right = known.get(step["left"]), formula.operator, known[formula.other(step["left"])]

    def value() -> int | None:
        return None if left is None or right is None else problem.apply(sign, left, right)

    yield "left", value()
    sign = step["sign"]
    yield "sign", value()
    right = known.get(step["right"])
    yield "right", value()
    left = int(step["left_value"])
    yield "left_value", value()
    right = int(step["right_value"])
    yield "right_value", value()
    yield "result", int(step["result"])
