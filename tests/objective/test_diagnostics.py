"""Diagnostics against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gate import GateConfig, gate_weights
from oar_lightning.credit.metrics import credit_metrics
from oar_lightning.objective.diagnostics import mean_correlation, position_in, rollout_metrics, weight_shape
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import Credit


def shape_of(*weights):
    return weight_shape(torch.tensor(weights, dtype=torch.float64))


def test_weight_shape_by_hand():
    assert shape_of(1.0, 3.0, 0.0, 4.0) == pytest.approx(
        # (1+3+0+4)^2 / (4 * 26); top tenth of 4 tokens is one; mean |difference| over pairs / (2 mean) = (28 / 16) / 4
        {"ess_ratio": 64 / 104, "top10_mass": 0.5, "gini": 0.4375, "weight_max": 4.0, "mass_error": 1.0}
    )
    assert shape_of(0.1, 1.9) == pytest.approx(
        {"ess_ratio": 4 / (2 * 3.62), "top10_mass": 0.95, "gini": 0.45, "weight_max": 1.9, "mass_error": 0.0}
    )


def test_weight_shape_extremes():
    assert shape_of(*[1.0] * 20) == pytest.approx(
        {"ess_ratio": 1, "top10_mass": 0.1, "gini": 0, "weight_max": 1, "mass_error": 0}
    )
    one_hot = shape_of(*[0.0] * 9, 10.0)
    assert one_hot == pytest.approx({"ess_ratio": 0.1, "top10_mass": 1, "gini": 0.9, "weight_max": 10, "mass_error": 0})
    assert shape_of(0.0, 0.0) == {"ess_ratio": 1.0, "top10_mass": 0.0, "gini": 0.0, "weight_max": 0.0, "mass_error": 1.0}
    assert shape_of(1.0)["top10_mass"] == 1


def test_gini_and_top10_by_brute_force():
    weights = torch.rand(40, dtype=torch.float64) ** 3
    w = weights.numpy()
    measured = weight_shape(weights)
    assert measured["gini"] == pytest.approx(np.abs(w[:, None] - w[None]).mean() / (2 * w.mean()), abs=1e-12)
    assert measured["top10_mass"] == pytest.approx(np.sort(w)[-4:].sum() / w.sum(), abs=1e-12)
    assert measured["ess_ratio"] == pytest.approx(w.sum() ** 2 / (40 * (w**2).sum()), abs=1e-12)


def test_mean_correlation_is_numpys():
    a, b = torch.randn(2, 5, 12, dtype=torch.float64)
    mask = torch.rand(5, 12) < 0.7
    a[2] = 0.3  # constant: does not count
    b[3, mask[3]] = -2 * a[3, mask[3]] + 1
    mask[4] = False  # empty: does not count
    expected = [np.corrcoef(a[i, mask[i]], b[i, mask[i]])[0, 1] for i in (0, 1, 3)]
    assert expected[2] == pytest.approx(-1)
    total, count = mean_correlation(a.masked_fill(~mask, 77.0), b.masked_fill(~mask, torch.nan), mask)
    assert count == 3
    assert total == pytest.approx(sum(expected), abs=1e-12)


def test_position_counts_masked_tokens():
    mask = torch.tensor([[False, True, True, False, True], [False] * 5])
    assert position_in(mask)[mask].tolist() == [0, 1, 2]


def test_metric_sums_add_up_micro_batches():
    sums = MetricSums()
    assert sums.means() == {}
    sums.add({"a": (3.0, 2.0), "b": (0.0, 0.0)})
    sums.add({"a": (7.0, 3.0), "c": (-1.0, 4.0)})
    assert sums.means() == {"a": 2.0, "c": -0.25}


SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]},
    {"before": [1], "reasoning": [3, 4], "answer": [7], "tail": [8]},
    {"before": [1, 2, 3], "reasoning": [3]},
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [7]},
]


def test_rollout_metrics_by_hand():
    rollouts = rollouts_of(
        SEQUENCES,
        rewards=torch.tensor([1.0, 0.0, 0.5, 0.5]),
        group_size=2,
        truncated=torch.tensor([False, False, True, False]),
    )
    assert rollout_metrics(rollouts).means() == pytest.approx(
        {
            "reward": 0.5,
            "reward_std": math.sqrt(0.5) / 2,
            "frac_reward_zero_std": 0.5,
            "completions/mean_length": (5 + 4 + 1 + 4) / 4,
            "completions/min_length": 1,
            "completions/max_length": 5,
            "completions/clipped_ratio": 0.25,
            "num_tokens": 7 + 5 + 4 + 6,
            "credit/no_span_frac": 0.25,
        }
    )


def credit_of(rollouts, importance, advantages, gate):
    weights = gate_weights(importance, rollouts.reasoning_mask, gate)
    return Credit(advantages[:, None] * weights * rollouts.response_mask, importance, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_credit_metrics_by_hand(dtype):
    """Row 0: log1p scores 0, 1/4, 1/2, 1 and tau on the third; row 1 has advantage 0; row 3 is invalid and keeps weight 1."""
    rollouts = rollouts_of(SEQUENCES)
    scores = torch.zeros(rollouts.token_ids.shape, dtype=dtype)
    scores[0, rollouts.reasoning_mask[0]] = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=dtype).expm1()
    scores[1, rollouts.reasoning_mask[1]] = torch.tensor([5.0, 1.0], dtype=dtype)
    scores[3, rollouts.reasoning_mask[3]] = torch.tensor([0.1, torch.nan, 0.1], dtype=dtype)
    gate = GateConfig(tau=2 / 3, beta=2.0)
    credit = credit_of(rollouts, scores, torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=dtype), gate)
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
            "credit/floor_frac": (0.25 + 0 + 0) / 3,
            "credit/boost_frac": (0.25 + 0 + 0) / 3,
            "credit/invalid_frac": 1 / 3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize(
    ("mode", "floor", "boost"), [("both", 0.25, 0.25), ("boost_only", 0, 0.25), ("suppress_only", 0.25, 0)]
)
def test_floor_and_boost_follow_the_gates_mode(mode, floor, boost):
    rollouts = rollouts_of(SEQUENCES[:1])
    scores = torch.zeros(rollouts.token_ids.shape)
    scores[rollouts.reasoning_mask] = torch.tensor([0.0, 0.25, 0.5, 1.0]).expm1()
    gate = GateConfig(tau=2 / 3, beta=2.0, mode=mode)
    metrics = credit_metrics(rollouts, credit_of(rollouts, scores, torch.ones(1), gate), gate).means()
    assert (metrics["credit/floor_frac"], metrics["credit/boost_frac"]) == (floor, boost)


def test_nothing_scored_gives_no_credit_metrics():
    rollouts = rollouts_of(SEQUENCES)
    scores = torch.rand(rollouts.token_ids.shape) * rollouts.reasoning_mask
    assert credit_metrics(rollouts, credit_of(rollouts, scores, torch.zeros(4), GateConfig()), GateConfig()).means() == {}
