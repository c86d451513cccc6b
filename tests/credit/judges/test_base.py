"""Judges made of functions, and the exact one of the built-in tasks."""

from __future__ import annotations

import pytest

from oar_lightning.credit.judges import Solution, SpanJudge
from oar_lightning.types import MathProblem

PROBLEM = MathProblem("q", "1")
STEPS = ((0, 3), (3, 5), (5, 9))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ((), (0.0, 0.0, 0.0)),
        (((3, 4),), (0.0, 1.0, 0.0)),
        (((2, 6),), (1.0, 1.0, 1.0)),
        (((5, 5), (0, 0)), (0.0, 0.0, 0.0)),
        (None, None),
    ],
)
def test_steps_that_overlap_a_wrong_range(
    wrong: tuple[tuple[int, int], ...] | None, expected: tuple[float, ...] | None
) -> None:
    asked = []

    def locate(problem: MathProblem, text: str) -> tuple[tuple[int, int], ...] | None:
        asked.append((problem, text))
        return wrong

    judge = SpanJudge(locate)
    assert judge([Solution(PROBLEM, "123456789", STEPS)]) == [expected]
    assert asked == [(PROBLEM, "123456789")]
    assert judge([]) == []
    assert judge.state_dict() == {}
