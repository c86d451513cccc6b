"""The direct gate against weights worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import DirectGate
from oar_lightning.types import AFTER_WARMUP

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [7], "tail": [8]},
    {"before": [1], "reasoning": [3, 4], "answer": [7], "tail": [8]},
]
INF = float("inf")


def given(*advantages: float, step: int = 0):
    rollouts = dataclasses.replace(rollouts_of(SEQUENCES), advantages=torch.tensor(advantages, dtype=torch.float64), step=step)
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    scores[0, rollouts.response_mask[0]] = torch.tensor([0.5, 3.0, 1.0, 1.5, 0.0], dtype=torch.float64)
    scores[1, rollouts.response_mask[1]] = 2.0
    return rollouts, scores


def test_weights_are_clipped_scores_mixed_with_one():
    rollouts, scores = given(2.0, -1.0)
    credit = DirectGate(strength=0.5, low=0.8, high=1.2)(scores, rollouts)
    weights = torch.tensor([0.9, 1.1, 1.0, 1.1, 0.9], dtype=torch.float64)
    assert torch.allclose(credit.weights[0, rollouts.response_mask[0]], weights)
    assert torch.allclose(credit.advantages[0, rollouts.response_mask[0]], 2 * weights)
    assert torch.allclose(credit.advantages[1, rollouts.response_mask[1]], torch.tensor(-1.1, dtype=torch.float64))
    assert credit.advantages[~rollouts.response_mask].eq(0).all()


def test_the_region_bounds_what_is_weighted_and_whose_mass_is_kept():
    rollouts, scores = given(1.0, 1.0)
    credit = DirectGate(preserve_mass=True, region="reasoning")(scores, rollouts)
    row = torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64) * 3 / 4.5
    assert torch.allclose(credit.weights[0, rollouts.reasoning_mask[0]], row)
    assert credit.weights[~rollouts.reasoning_mask].eq(1).all()


def test_strength_falls_to_zero_and_then_training_is_grpo_bit_for_bit():
    gate = DirectGate(strength_steps=4)
    assert [gate.strength_at(step) for step in (0, 1, 4, 9)] == [1, 0.75, 0, 0]
    assert gate.strength_at(AFTER_WARMUP) == 1, "completions that belong to no step show what the gate does"
    rollouts, scores = given(0.7, -0.3, step=4)
    expected = (rollouts.advantages[:, None] * torch.ones_like(scores)).masked_fill(~rollouts.response_mask, 0)
    assert torch.equal(gate(scores, rollouts).advantages, expected)
    assert torch.equal(DirectGate(strength=0)(scores, dataclasses.replace(rollouts, step=0)).advantages, expected)


@pytest.mark.parametrize("bad", [torch.nan, INF])
def test_a_completion_with_unusable_scores_keeps_its_group_advantage(bad):
    rollouts, scores = given(1.0, -2.0)
    scores[0, rollouts.response_mask[0].nonzero()[2]] = bad
    credit = DirectGate()(scores, rollouts)
    assert credit.advantages[0, rollouts.response_mask[0]].eq(1).all()
    assert credit.advantages[1, rollouts.response_mask[1]].eq(-4).all()


def test_saturated_share_by_hand():
    rollouts, scores = given(1.0, 1.0)
    gate = DirectGate(low=0.5, high=2.0)
    total, count = gate.metrics(gate(scores, rollouts), rollouts.response_mask)["credit/saturated_frac"]
    assert (total, count) == (pytest.approx(3 / 5 + 1), 2)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"strength": 1.5}, r"gate\.strength .*\[0, 1\], got 1.5"),
        ({"strength_steps": 0}, r"gate\.strength_steps must be >= 1 or null, got 0"),
        ({"low": -1}, r"gate\.low must be finite and >= 0, got -1"),
        ({"low": 2, "high": 1}, "low=2, high=1"),
    ],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        DirectGate(**knobs)
