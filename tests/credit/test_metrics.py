"""Metrics of credit against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import BilevelGate, SignedGate, weighted
from oar_lightning.credit.metrics import credit_metrics, scorer_metrics
from oar_lightning.credit.scorers import Random

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]},
    {"before": [1], "reasoning": [3, 4], "answer": [7], "tail": [8]},
    {"before": [1, 2, 3], "reasoning": [3]},
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [7]},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_credit_metrics_by_hand(dtype):
    """Row 0: log1p scores 0, 1/4, 1/2, 1 and tau on the third; row 1 has advantage 0; row 3 is invalid and keeps weight 1."""
    rollouts = rollouts_of(SEQUENCES)
    scores = torch.zeros(rollouts.token_ids.shape, dtype=dtype)
    scores[0, rollouts.reasoning_mask[0]] = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=dtype).expm1()
    scores[1, rollouts.reasoning_mask[1]] = torch.tensor([5.0, 1.0], dtype=dtype)
    scores[3, rollouts.reasoning_mask[3]] = torch.tensor([0.1, torch.nan, 0.1], dtype=dtype)
    gate = BilevelGate(tau=2 / 3, beta=2.0)
    rollouts = dataclasses.replace(rollouts, advantages=torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=dtype))
    credit = gate(scores, rollouts)
    raw = np.array([0.1, 0.5, 1, 3])
    w = raw * 4 / raw.sum()
    with_nan = credit_metrics(rollouts, credit, gate).means()
    assert with_nan.pop("credit/corr_position") == pytest.approx(
        np.corrcoef(np.expm1([0, 0.25, 0.5, 1]), [0, 1, 2, 3])[0, 1], abs=1e-6
    )
    assert with_nan == pytest.approx(
        {
            "credit/ess_ratio": (16 / (4 * (w**2).sum()) + 1 + 1) / 3,
            "credit/top10_mass": (w.max() / 4 + 1 + 1 / 3) / 3,
            "credit/gini": (np.abs(w[:, None] - w[None]).mean() / 2) / 3,
            "credit/weight_max": (w.max() + 1 + 1) / 3,
            "credit/mass_error": 0,
            "credit/uniform_frac": 2 / 3,
            "credit/mass": 1,
            "credit/sign_flips": 0,
            "credit/floor_frac": (0.25 + 0 + 0) / 3,
            "credit/boost_frac": (0.25 + 0 + 0) / 3,
            "credit/invalid_frac": 1 / 3,
            "credit/no_advantage_frac": 0.25,
        },
        abs=1e-6,
    )


def test_weights_of_one_size_and_two_signs_are_not_uniform() -> None:
    rollouts = rollouts_of([SEQUENCES[0]] * 2, group_size=2, advantages=torch.tensor([1.0, -1.0]))
    weights = torch.where(torch.arange(rollouts.token_ids.shape[1]) % 2 == 0, 1.0, -1.0).expand(2, -1)
    for signs, expected in ((weights, 0.0), (weights.abs(), 1.0), (weights.abs() + 1e-7 * weights, 1.0)):
        credit = weighted(signs, signs.masked_fill(~rollouts.response_mask, 0.0), rollouts)
        assert credit_metrics(rollouts, credit, BilevelGate()).means()["credit/uniform_frac"] == expected


@pytest.mark.parametrize(
    ("mode", "floor", "boost"), [("both", 0.25, 0.25), ("boost_only", 0, 0.25), ("suppress_only", 0.25, 0)]
)
def test_floor_and_boost_follow_the_gates_mode(mode, floor, boost):
    rollouts = dataclasses.replace(rollouts_of(SEQUENCES[:1]), advantages=torch.ones(1))
    scores = torch.zeros(rollouts.token_ids.shape)
    scores[rollouts.reasoning_mask] = torch.tensor([0.0, 0.25, 0.5, 1.0]).expm1()
    gate = BilevelGate(tau=2 / 3, beta=2.0, mode=mode)
    metrics = credit_metrics(rollouts, gate(scores, rollouts), gate).means()
    assert (metrics["credit/floor_frac"], metrics["credit/boost_frac"]) == (floor, boost)


def test_nothing_scored_gives_no_metrics_of_weights():
    rollouts = dataclasses.replace(rollouts_of(SEQUENCES), advantages=torch.zeros(4))
    scores = torch.rand(rollouts.token_ids.shape) * rollouts.reasoning_mask
    assert credit_metrics(rollouts, BilevelGate()(scores, rollouts), BilevelGate()).means() == {"credit/no_advantage_frac": 1.0}


def test_signed_advantages_count_by_their_size():
    """Row 0: weights 2, -1, 2, 1; row 1 has no group advantage; row 3 is unusable."""
    rollouts = dataclasses.replace(rollouts_of(SEQUENCES), advantages=torch.tensor([0.5, 0.0, 1.0, -1.0]))
    scores = torch.zeros(rollouts.token_ids.shape)
    scores[0, rollouts.reasoning_mask[0]] = torch.tensor([1.0, -0.5, 1.0, 0.5])
    scores[1, rollouts.reasoning_mask[1]] = torch.tensor([-3.0, 1.0])
    scores[3, rollouts.reasoning_mask[3]] = torch.tensor([1.0, torch.inf, 1.0])
    gate = SignedGate(region="reasoning")
    metrics = credit_metrics(rollouts, gate(scores, rollouts), gate).means()
    assert metrics["credit/sign_flips"] == pytest.approx((1 / 4 + 0) / 2)
    assert metrics["credit/mass"] == pytest.approx((4 / 4 + 1) / 2)
    assert metrics["credit/invalid_frac"] == pytest.approx(1 / 3)
    assert metrics["credit/weight_max"] == pytest.approx((2 + 1.5 + 1) / 3)
    assert metrics["credit/ess_ratio"] == pytest.approx((36 / 40 + 16 / 20 + 1) / 3)


def test_passes_of_scoring_are_those_of_the_whole_batch() -> None:
    """Of two groups the first one is scored: 2.5 passes of 6 of 20 tokens. Other metrics are of the completions scored."""
    rollouts = rollouts_of([{"before": [1], "reasoning": [5, 6]}] * 2 + [{"before": [1], "reasoning": [5] * 6}] * 2)
    scorer = Random()
    scorer.metrics.update(forward_equivalents=2.5, unread_frac=0.25)
    found = scorer_metrics(rollouts, scorer, torch.tensor([0, 1])).means()
    assert found == pytest.approx({"credit/forward_equivalents": 2.5 * 6 / 20, "credit/unread_frac": 0.25})
    none = torch.tensor([], dtype=torch.long)
    assert scorer_metrics(rollouts, Random(), none).means() == {"credit/forward_equivalents": 0}
    assert scorer_metrics(rollouts, Random(), torch.tensor([0])).means() == {}, "it counts none"
