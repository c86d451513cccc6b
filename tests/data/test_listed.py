"""Problems in memory are a source like any other."""

from __future__ import annotations

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


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ListedProblems([])
