"""The definition of a judge, and the judge that a function of problem and text makes.

A judge is a callable ``(solutions) -> verdicts``, one for each solution. A verdict has a number in [0, 1] for each step: how
wrong it is. None stands for no judgement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from oar_lightning.credit.component import Component
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import MathProblem

Ranges = Sequence[tuple[int, int]]
"""Character ranges ``(start, end)`` of a completion."""

Verdict = tuple[float, ...] | None


class Solution(NamedTuple):
    """A completion and the ranges of its steps, of which there is at least one."""

    problem: MathProblem
    text: str
    steps: tuple[tuple[int, int], ...]


class Judge(Component, ABC):
    """Base of the judges. All ranks call it at each step, each with its own completions, so it may communicate."""

    def __init__(self) -> None:
        self.totals = MetricSums()
        """Counts of the last call, of which the sum over ranks is logged, and seconds; under their own names."""

    def forecast(self, completions: int) -> str:
        """What a step with so many completions asks for, in words; empty for most."""
        return ""

    @abstractmethod
    def __call__(self, solutions: Sequence[Solution]) -> list[Verdict]: ...


class SpanJudge(Judge):
    """A step is wrong if it overlaps a wrong range of the text.

    Args:
        locate: (problem, completion) -> the wrong ranges, or None for no judgement; e.g. `data.task_credit.TaskErrors`.
    """

    def __init__(self, locate: Callable[[MathProblem, str], Ranges | None]) -> None:
        super().__init__()
        self.locate = locate

    def __call__(self, solutions: Sequence[Solution]) -> list[Verdict]:
        return [self._verdict(one) for one in solutions]

    def _verdict(self, solution: Solution) -> Verdict:
        wrong = self.locate(solution.problem, solution.text)
        if wrong is None:
            return None
        return tuple(float(any(first < end and start < last for start, end in wrong)) for first, last in solution.steps)
