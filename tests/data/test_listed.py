"""Problems in memory are a source like any other."""

from __future__ import annotations

from typing import Any

import pytest

from oar_lightning.data.listed import ListedProblems
from oar_lightning.data.stream import ProblemSource, is_endless
from oar_lightning.types import MathProblem

PROBLEMS = [MathProblem(str(i), str(i)) for i in range(5)]


def test_each_epoch_has_all_in_an_order_of_its_own() -> None:
    source = ListedProblems(PROBLEMS)
    assert isinstance(source, ProblemSource)
    assert not is_endless(source)
    assert list(source) == PROBLEMS
    orders = [list(source.shuffled(seed=0, epoch=epoch)) for epoch in range(3)]
    assert all(set(order) == set(PROBLEMS) and len(order) == 5 for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert list(source.shuffled(0, 1, start=3)) == orders[1][3:]


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([], "at least one"),
        ([PROBLEMS[0], {"question": "1", "answer": "2"}], r"problem 1 of the list is \{'question': '1', .*give MathProblem\("),
        ([MathProblem("1 + 1", " ")], "problem 0 of the list has no question or no gold answer"),
    ],
)
def test_what_nobody_can_be_asked_is_refused(problems: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListedProblems(problems)


@pytest.mark.parametrize(("name", "value"), [("answer", 2), ("question", None)])
def test_a_problem_is_of_texts(name: str, value: Any) -> None:
    problem = MathProblem("1 + 1", "2")
    object.__setattr__(problem, name, value)  # these tests check the types of calls, as nobody else does
    with pytest.raises(ValueError, match=rf"MathProblem\.{name} must be a text, got {value}; write str\("):
        problem.__post_init__()
