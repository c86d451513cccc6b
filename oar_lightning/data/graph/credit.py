"""Locates the characters of a sampled `graph` completion that decide its outcome, by the task's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from oar_lightning.data.generated import OPENERS
from oar_lightning.data.graph.problem import ITEMS, GraphProblem, read_question
from oar_lightning.data.pieces import Piece, PieceCredit
from oar_lightning.types import MathProblem

_PARTS = (
    r"(?:[A-Z][a-z]* )?", r"(?P<name>[a-z]+)", r" is ", r"(?P<left>[a-z]+)", r" (?P<sign>[-+*]) ", r"(?P<right>[a-z]+)", r"; ",
    r"(?P=left)=", r"(?P<left_value>[0-9]{1,9})", r"; ", r"(?P=right)=", r"(?P<right_value>[0-9]{1,9})", r"; ",
    r"(?P=name)=", r"(?P<result>[0-9]{1,9})",
)  # fmt: skip
"""Of a step, in order."""

_STEP = re.compile(rf"\b{''.join(_PARTS[1:])}(?![0-9])")
_BEGINNINGS = [re.compile("".join(_PARTS[:number])) for number in range(len(_PARTS), 0, -1)]
"""What a step begins with, the longest first."""


def step_ends(problem: MathProblem, completion: str) -> list[int]:
    """Where the steps of a completion end, for `credit.segments.TextCuts`."""
    return [match.end() for match in _STEP.finditer(completion)]


_NAME = re.compile(r"[a-z]+")
_PLAN = re.compile(r"Needed:(?P<names>[a-z ]*)(?P<end>\.)?")
_ASIDE = re.compile(rf"(?:{'|'.join(OPENERS)})(?: (?:{'|'.join(ITEMS)}))+\.?")
_WORD = re.compile(r"\w")
_NEXT = re.compile(r" *(?:\w+|[^\w\n]|$)")


class GraphCredit(PieceCredit):
    """Operands, operators and numbers of the steps that the answer depends on; decisions are the operands' names, the operators
    and the names of the plan.

    A piece is wrong if neither it nor any later one, continued without a fault, leads to the right answer. A slip that does not
    matter, or that a later one makes good, is none. Of a line that is no step the wrong piece is the quantity that is computed
    before its operands are, else the first word that no step could have there; asides are passed over. Where a completion has a
    wrong piece, or lacks what is asked for, and its plan cannot be computed backwards, the plan is wrong as well: at the first
    name by which it cannot, or at its end, where a quantity is missing. A text with neither a plan nor a step has no pieces: it
    is not of the task's form.
    """

    task = "graph"

    def pieces(self, problem: MathProblem, completion: str) -> list[Piece] | None:
        graph = read_question(problem.question)
        if graph is None:
            return None
        stated: dict[str, int] = {}
        pieces = list(_pieces(graph, completion, stated))
        plan = _PLAN.search(completion)
        if plan is None and all(piece.form for piece in pieces):
            return []
        last_right = max((i for i, piece in enumerate(pieces) if not piece.wrong), default=-1)
        pieces = [piece._replace(wrong=i > last_right) for i, piece in enumerate(pieces)]
        if plan is None:
            return pieces
        failed = graph.asked not in stated or any(piece.wrong for piece in pieces)
        return [*_plan_pieces(graph, plan, failed), *pieces]


def _plan_pieces(problem: GraphProblem, plan: re.Match[str], failed: bool) -> Iterator[Piece]:
    """The names of a plan, if the completion `failed` up to the one by which it is wrong."""
    listed: list[str] = []
    for word in _NAME.finditer(plan.string, *plan.span("names")):
        name = word[0]
        wrong = failed and not _may_follow(problem, name, listed)
        yield Piece(word.span(), wrong, result=False, decision=True, form=True)
        if wrong:
            return
        listed.append(name)
    formulas = problem.formulas
    operands = {o for name in listed if name in formulas for o in formulas[name].operands if o in formulas}
    if failed and plan["end"] and not problem.needed | operands <= {*listed}:
        yield Piece(plan.span("end"), wrong=True, result=False, decision=False, form=True)


def _may_follow(problem: GraphProblem, name: str, listed: Sequence[str]) -> bool:
    """Whether a quantity can come next in a plan: after all that need it, before what it is computed from."""
    formulas = problem.formulas
    if name not in formulas:
        return False
    users = {user for user in problem.needed if name in formulas[user].operands}
    return users <= {*listed} and (name in listed or not {*formulas[name].operands} & {*listed})


def _pieces(problem: GraphProblem, completion: str, stated: dict[str, int]) -> Iterator[Piece]:
    """The pieces, each wrong if it does not lead on to the right answer by itself. `stated` is filled with results of steps."""
    for line in re.finditer(r"[^\n]+", completion):
        if _PLAN.match(line[0]) or _ASIDE.fullmatch(line[0]) or not _WORD.search(line[0]):
            continue
        if "\\boxed" in line[0]:
            return
        steps = list(_STEP.finditer(completion, *line.span()))
        if not steps:
            yield Piece(_fault(problem, completion, line.span(), stated), wrong=True, result=False, decision=False, form=True)
        for step in steps:
            name = step["name"]
            if name not in problem.formulas:
                continue
            if name in problem.needed:
                for part, value in _values(problem, stated, step):
                    wrong = value is None or problem.values({**stated, name: value})[problem.asked] != problem.answer
                    yield Piece(step.span(part), wrong, result=part == "result", decision=part in ("left", "sign", "right"))
            stated[name] = int(step["result"])


def _fault(problem: GraphProblem, completion: str, line: tuple[int, int], stated: Mapping[str, int]) -> tuple[int, int]:
    """Where a line that is no step has gone wrong."""
    begun = next(found for b in _BEGINNINGS if (found := b.match(completion, *line)))
    name = begun.groupdict().get("name")
    formula = problem.formulas.get(name or "")
    if name is None or (formula is not None and all(o in stated or o not in problem.formulas for o in formula.operands)):
        return _after(completion, begun.end())
    return begun.span("name")


def _after(completion: str, place: int) -> tuple[int, int]:
    """The word or sign at a place, or the last character where the text ends there."""
    found = _NEXT.match(completion, place)
    start, end = (place, place) if found is None else found.span()
    return (start, end) if end > start else (max(start - 1, 0), start)


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
