"""The signed gate against advantages worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import SignedGate

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [7]},
    {"before": [1], "reasoning": [3, 4], "answer": [7]},
]


def given(first: float, second: float):
    rollouts = rollouts_of(SEQUENCES)
    advantages = torch.tensor([first, second], dtype=torch.float64)
    rollouts = dataclasses.replace(rollouts, advantages=advantages, group_size=2)
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    scores[0, rollouts.response_mask[0]] = torch.tensor([0.5, -3.0, 1.0, 0.0], dtype=torch.float64)
    scores[1, rollouts.response_mask[1]] = torch.tensor([-0.25, 0.25, 0.5], dtype=torch.float64)
    return rollouts, scores


def row(credit, rollouts, number):
    return credit.advantages[number, rollouts.response_mask[number]].tolist()


def test_scores_are_the_advantages_also_where_the_group_has_none():
    rollouts, scores = given(1.0, 0.0)
    credit = SignedGate(scale=2.0)(scores, rollouts)
    assert row(credit, rollouts, 0) == [1, -6, 2, 0]
    assert row(credit, rollouts, 1) == [-0.5, 0.5, 1]
    assert credit.weights[0, rollouts.response_mask[0]].tolist() == [1, -6, 2, 0]
    assert not credit.weights[1].any()


def test_scores_are_added_to_the_group_advantage_or_multiply_it():
    rollouts, scores = given(1.0, -2.0)
    added, times = SignedGate("add", 0.5)(scores, rollouts), SignedGate("multiply", 0.5)(scores, rollouts)
    assert row(added, rollouts, 0) == [1.25, -0.5, 1.5, 1]
    assert row(times, rollouts, 0) == [1.25, -0.5, 1.5, 1]
    assert row(added, rollouts, 1) == [-2.125, -1.875, -1.75]
    # a token that helps (0.5) is blamed less in a wrong completion
    assert row(times, rollouts, 1) == [-2.25, -1.75, -1.5]


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_bounded_factors_flip_no_sign_and_their_mass_is_that_of_the_scores(scale):
    """The mean weight is 1 + scale * mean(u), u = sign(A) times the scores over their spread, clipped to [-1, 1]."""
    rollouts, scores = given(1.0, -2.0)
    credit = SignedGate("multiply", scale, "row", 1.0)(scores, rollouts)
    for i, mask in enumerate(rollouts.response_mask):
        c = scores[i, mask].numpy()
        u = np.sign(float(rollouts.advantages[i])) * np.clip(c / c.std(), -1, 1)
        weights = credit.weights[i, mask].numpy()
        assert weights.mean() == pytest.approx(1 + scale * u.mean())
        assert weights.min() >= 0
        assert np.ptp(weights) > 0.1


def test_a_sign_can_be_kept():
    rollouts, scores = given(1.0, -2.0)
    assert row(SignedGate("add", 0.5, keep_sign=True)(scores, rollouts), rollouts, 0) == [1.25, 0, 1.5, 1]


@pytest.mark.parametrize("combine", ["add", "multiply"])
def test_scores_of_zero_and_a_scale_of_zero_are_grpo_bit_for_bit(combine):
    rollouts, scores = given(0.7, -0.3)
    credit = SignedGate(combine)(torch.zeros_like(scores), rollouts)
    assert torch.equal(credit.advantages, rollouts.advantages[:, None] * rollouts.response_mask)
    credit = SignedGate(combine, scale=0, normalize="row", clip=1.0)(scores, rollouts)
    assert torch.equal(credit.advantages, rollouts.advantages[:, None] * rollouts.response_mask)


@pytest.mark.parametrize("over", ["row", "group"])
def test_scores_are_divided_by_their_spread_and_clipped(over):
    rollouts, scores = given(1.0, 1.0)
    values = [scores[i, m].numpy() for i, m in enumerate(rollouts.response_mask)]
    spread = [v.std() for v in values] if over == "row" else [np.concatenate(values).std()] * 2
    credit = SignedGate(normalize=over, clip=1.5)(scores, rollouts)
    for i, (v, s) in enumerate(zip(values, spread, strict=True)):
        assert row(credit, rollouts, i) == pytest.approx(np.clip(v / s, -1.5, 1.5))


def test_the_region_bounds_the_scores():
    rollouts, scores = given(1.0, 1.0)
    assert row(SignedGate("add", region="reasoning")(scores, rollouts), rollouts, 1) == [0.75, 1.25, 1]
    assert row(SignedGate("replace", region="reasoning")(scores, rollouts), rollouts, 1) == [-0.25, 0.25, 0]


def test_a_completion_with_unusable_scores_keeps_its_group_advantage():
    rollouts, scores = given(1.0, -2.0)
    scores[1, rollouts.reasoning_mask[1].nonzero()[0]] = torch.nan
    credit = SignedGate(normalize="group")(scores, rollouts)
    assert row(credit, rollouts, 1) == [-2, -2, -2]
    assert np.isfinite(row(credit, rollouts, 0)).all()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"scale": 0}, r"gate\.scale .* > 0, got 0"),
        ({"clip": 0}, r"gate\.clip .* > 0 or null, got 0"),
        ({"keep_sign": True}, r"gate\.keep_sign=true .* gate\.combine=replace"),
    ],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        SignedGate(**knobs)


@pytest.mark.parametrize("normalize", ["row", "group"])
@pytest.mark.parametrize("value", [0.1, 0.7, -1 / 3, 1e-3])
@pytest.mark.parametrize("length", [2, 3, 7, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_have_no_spread_to_be_divided_by(normalize, value, length, dtype):
    """Their variance is 0 but for rounding, which would become their unit."""
    rollouts = rollouts_of([{"before": [1], "reasoning": [3] * length, "answer": [7]}] * 2)
    rollouts = dataclasses.replace(rollouts, advantages=torch.tensor([1.0, -1.0], dtype=torch.float64), group_size=2)
    scores = value * rollouts.response_mask.to(dtype)
    assert not SignedGate(normalize=normalize, clip=1.0)(scores, rollouts).advantages.any()
