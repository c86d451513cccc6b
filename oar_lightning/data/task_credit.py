"""What the built-in tasks know of a completion, whichever task its problem is of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from oar_lightning.common.ranges import checked
from oar_lightning.data.chain import credit as chain
from oar_lightning.data.chain.problem import asked_accounts
from oar_lightning.data.graph import credit as graph
from oar_lightning.data.graph.problem import read_question
from oar_lightning.data.pieces import PieceCredit, Which, foreign
from oar_lightning.types import CausalSpans, MathProblem

T = TypeVar("T")

TASKS: tuple[type[PieceCredit], ...] = (chain.ChainCredit, graph.GraphCredit)
_NAMES = " or ".join(task.task for task in TASKS)


@checked("scorer.locate")
class TaskCredit:
    """Locates the causal characters of a completion of any built-in task; the `locate` of conf/scorer/oracle.yaml.

    Args:
        which: see `PieceCredit`.
    """

    def __init__(self, which: Which = "first_error") -> None:
        self.tasks = tuple(task(which) for task in TASKS)

    def __call__(self, problem: MathProblem, completion: str) -> CausalSpans:
        """Raises ValueError for a problem of another task."""
        return _of_its_task(self.tasks, problem, lambda task: task.spans(problem, completion), "scorer.locate")


@checked("scorer.judge.locate")
class TaskErrors:
    """Locates the wrong characters of a completion of any built-in task; the `locate` of conf/scorer/judge/exact.yaml.

    Args:
        which: `first`: the first wrong piece, where the completion went wrong. `all`: also those that only carry it on.
    """

    def __init__(self, which: Literal["first", "all"] = "first") -> None:
        self.which = which
        self.tasks = tuple(task() for task in TASKS)

    def __call__(self, problem: MathProblem, completion: str) -> tuple[tuple[int, int], ...] | None:
        """The ranges; None for a completion without a readable step. Raises ValueError for a problem of another task."""
        pieces = _of_its_task(self.tasks, problem, lambda task: task.pieces(problem, completion), "scorer.judge.locate")
        wrong = tuple(piece.span for piece in pieces if piece.wrong)
        return (wrong[:1] if self.which == "first" else wrong) if pieces else None


def _of_its_task(tasks: Iterable[PieceCredit], problem: MathProblem, read: Callable[[PieceCredit], T | None], key: str) -> T:
    """What the problem's task reads: the others read None. Raises ValueError, which names the key, where all do."""
    for task in tasks:
        if (found := read(task)) is not None:
            return found
    raise foreign(problem, _NAMES, key)


def step_ends(problem: MathProblem, completion: str) -> list[int]:
    """Where the steps of a completion end, for `credit.segments.TextCuts`. Raises ValueError for a problem of another task."""
    if read_question(problem.question):
        return graph.step_ends(problem, completion)
    if asked_accounts(problem.question) is None:
        raise foreign(problem, _NAMES, "scorer/segments=task_steps", "e.g. scorer/segments=sentences")
    return chain.step_ends(problem, completion)
