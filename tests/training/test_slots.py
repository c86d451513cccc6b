"""Slots of an update plan: their order, and that a loader resumes at any of them."""

from __future__ import annotations

import pytest
from support.numbered import PLAN, Numbers, slots

from oar_lightning.data.stream import ProblemStream
from oar_lightning.training.slots import SlotLoader, UpdatePlan


def test_slots_in_order_and_problems_in_the_first_only() -> None:
    loader = SlotLoader(ProblemStream(Numbers(None), seed=0), PLAN, steps=8)
    assert (PLAN.steps_per_rollout, PLAN.slots_per_rollout, len(loader)) == (4, 8, 16)
    seen = slots(loader, 16)
    expected_order = [(r, e, m, u) for r in range(2) for e in range(2) for m in range(2) for u in range(2)]
    assert [s[1:5] for s in seen] == expected_order
    assert [s[0] for s in seen] == [[0, 1, 2], *[[]] * 7, [3, 4, 5], *[[]] * 7]
    assert [s[5] for s in seen] == [True, *[False] * 7] * 2


@pytest.mark.parametrize("done", [0, 1, 5, 8, 11])
def test_a_slot_loader_resumes_anywhere(done: int) -> None:
    whole = SlotLoader(ProblemStream(Numbers(5), seed=1), PLAN, steps=16)
    slots(whole, done)
    resumed = SlotLoader(ProblemStream(Numbers(5), seed=1), PLAN, steps=16)
    resumed.load_state_dict(whole.state_dict())
    assert slots(resumed, 20) == slots(whole, 20)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"problems": 0}, r"update\.problems must be >= 1, got 0"),
        ({"inner_epochs": 0}, r"update\.inner_epochs must be >= 1"),
        ({"minibatches": 0}, r"update\.minibatches must be >= 1"),
        ({"microbatches": -1}, r"update\.microbatches must be >= 1, got -1"),
        ({"group_size": 1}, r"update\.group_size is the number of .* must be >= 2, got 1"),
        ({"problems": 2, "group_size": 2, "minibatches": 5}, r"update\.minibatches=5 is more than the completions of a batch"),
    ],
)
def test_bad_plans_name_their_key(arguments: dict[str, int], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        UpdatePlan(**arguments)
