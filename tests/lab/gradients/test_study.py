"""The lab's gradients: of which completions, against what, and with which controls."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.relays import relaying_policy, relays

from oar_lightning.credit.component import group_advantages_of
from oar_lightning.lab.gradients.study import Gradients
from oar_lightning.lab.types import Estimate, Studied, Truth
from oar_lightning.objective.loss import LossConfig


@pytest.fixture(scope="module")
def studied() -> Studied:
    rollouts = relays(8)
    problem, zeros = tuple(i // 2 for i in range(8)), torch.zeros(rollouts.token_ids.shape)
    return Studied(rollouts, problem, tuple("abcdefgh"), (True, False) * 4, zeros, zeros, rollouts.reasoning_mask)


def test_estimates_stand_beside_what_they_are_held_against(studied) -> None:
    model = relaying_policy()
    rollouts = studied.rollouts
    group = group_advantages_of(rollouts)[:, None] * rollouts.response_mask
    decision = torch.zeros_like(group)
    decision[:, 2] = group[:, 2]
    truth = Truth("monte_carlo", rollouts.reasoning_mask, rollouts.reasoning_mask, decision.double())
    estimates = [
        Estimate("as grpo", group, group, False, 0.0),
        Estimate("as the truth", decision, decision, False, 0.0),
        Estimate("twice grpo", group, 2 * group, False, 0.0),
    ]
    part = Gradients(blocks=4, coordinates=None)
    found = part(model, studied, estimates, [truth], LossConfig())
    assert list(found) == ["(unweighted)", "(values)", "as grpo", "as the truth", "twice grpo"]
    keys = {"raw", "adam"} | {
        f"{kind}/{reference}"
        for kind in ("variance", "same_batch", "cosine", "adam_cosine")
        for reference in ("(unweighted)", "(values)")
    }
    assert all(set(of_name) == keys for of_name in found.values())
    assert found["as grpo"]["raw"].mean == found["(unweighted)"]["raw"].mean
    assert found["twice grpo"]["raw"].mean == pytest.approx(found["(unweighted)"]["raw"].mean)
    assert found["twice grpo"]["variance/(unweighted)"].mean == pytest.approx(4.0)
    assert found["as the truth"]["same_batch/(values)"].mean == pytest.approx(1.0)
    assert 0 < found["as grpo"]["same_batch/(values)"].mean < 0.99
    assert found["as grpo"]["raw"].n == 4, "a problem's completions are one batch"
    assert list(part(model, studied, [], [], LossConfig())) == ["(unweighted)"]


def test_without_two_problems_with_a_signal_there_is_nothing(studied, caplog) -> None:
    silent = dataclasses.replace(studied.rollouts, advantages=torch.tensor([1.0, -1.0, *[0.0] * 6]))
    assert Gradients()(None, dataclasses.replace(studied, rollouts=silent), [], [], LossConfig()) == {}
    assert "lab.gradients: fewer than two problems" in caplog.text


@pytest.mark.parametrize(("problems", "blocks"), [(2, 2), (2, 8), (3, 2)])
def test_problems_too_few_for_an_interval_are_told(studied, caplog, problems: int, blocks: int) -> None:
    """Which leaves out one block of them, and needs two in the others."""
    numbers = tuple(i % problems for i in range(len(studied.problem)))
    few = dataclasses.replace(studied, problem=tuple(sorted(numbers)))
    assert Gradients(blocks=blocks)(None, few, [], [], LossConfig()) == {}
    assert f"lab.problems={problems} are too few for intervals over lab.gradients.blocks={blocks}" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 1}, r"lab\.gradients\.blocks must be >= 2, got 1"),
        ({"coordinates": 0}, r"lab\.gradients\.coordinates must be >= 1 or null, got 0"),
        ({"token_budget": -1}, r"lab\.gradients\.token_budget .* got -1"),
    ],
)
def test_errors_name_the_key(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Gradients(**settings)
