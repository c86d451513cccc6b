"""What is left, over ranks and starts."""

from __future__ import annotations

from typing import Any

import pytest

from oar_lightning.credit.judges import budget as module
from oar_lightning.credit.judges.budget import Budget


class Ranks:
    """Budgets of several ranks, which share out together."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        self.budgets = [Budget(limits.get("calls"), limits.get("tokens")) for _ in range(count)]
        self.monkeypatch = monkeypatch

    def together(self, method: str) -> list[Any]:
        own = [dict(budget._own) for budget in self.budgets]
        found = []
        for number, budget in enumerate(self.budgets):
            self.monkeypatch.setattr(module, "all_gather", lambda value: own)
            self.monkeypatch.setattr(module, "rank", lambda number=number: number)
            found.append(getattr(budget, method)())
        return found

    def take_all(self) -> list[int]:
        self.together("share_out")
        counts = []
        for budget in self.budgets:
            count = 0
            while budget.take_call():
                count += 1
            counts.append(count)
        return counts


@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_are_shared_out_to_the_last(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(count, monkeypatch, calls=7)
    taken = ranks.take_all()
    assert sum(taken) == 7
    assert max(taken) - min(taken) <= 1
    assert ranks.take_all() == [0] * count


def test_what_one_rank_leaves_others_get(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2, monkeypatch, calls=8)
    ranks.together("share_out")
    assert ranks.budgets[0].take_call()
    assert sum(ranks.take_all()) == 7


def test_the_state_is_that_of_all_ranks_and_goes_on_with_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2, monkeypatch, calls=10, tokens=100)
    ranks.together("share_out")
    for _ in range(3):
        assert ranks.budgets[0].take_call()
    ranks.budgets[1].pay(40)
    states = ranks.together("state_dict")
    assert states == [{"calls": 3, "tokens": 40}] * 2
    alone = Ranks(1, monkeypatch, calls=10, tokens=100)
    alone.budgets[0].load_state_dict(states[0])
    assert alone.take_all() == [7]
    assert alone.together("state_dict") == [{"calls": 10, "tokens": 40}]


def test_tokens_end_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(1, monkeypatch, tokens=50)
    ranks.together("share_out")
    budget = ranks.budgets[0]
    assert budget.take_call()
    budget.pay(60)
    assert budget.is_spent
    assert not budget.take_call()
    assert ranks.take_all() == [0]


def test_one_that_is_alone_for_a_moment_knows_what_the_others_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2, monkeypatch, calls=4)
    assert ranks.take_all() == [2, 2]
    ranks.together("share_out")
    monkeypatch.setattr(module, "all_gather", lambda value: [value])
    monkeypatch.setattr(module, "rank", lambda: 0)
    ranks.budgets[0].share_out()
    assert not ranks.budgets[0].take_call()


def test_without_limits_there_is_no_state() -> None:
    budget = Budget(None, None)
    budget.share_out()
    assert budget.take_call()
    assert budget.state_dict() == {}
    budget.load_state_dict({})
