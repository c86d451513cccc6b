"""Diagnostics against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.objective.diagnostics import (
    group_std,
    mean_correlation,
    position_in,
    rollout_metrics,
    weight_shape,
    weight_shapes,
)


def shape_of(*weights):
    return weight_shape(torch.tensor(weights, dtype=torch.float64))


def test_weight_shape_by_hand():
    assert shape_of(1.0, 3.0, 0.0, 4.0) == pytest.approx(
        # (1+3+0+4)^2 / (4 * 26); top tenth of 4 tokens is one; mean |difference| over pairs / (2 mean) = (28 / 16) / 4
        {"ess_ratio": 64 / 104, "top10_mass": 0.5, "gini": 0.4375, "weight_max": 4.0, "mass_error": 1.0}
    )
    assert shape_of(0.1, 1.9) == pytest.approx(
        {
            "ess_ratio": 4 / (2 * 3.62),
            "top10_mass": 0.95,
            "gini": 0.45,
            "weight_max": 1.9,
            "mass_error": 0.0,
        }
    )


def test_weight_shape_extremes():
    assert shape_of(*[1.0] * 20) == pytest.approx(
        {"ess_ratio": 1, "top10_mass": 0.1, "gini": 0, "weight_max": 1, "mass_error": 0}
    )
    one_hot = shape_of(*[0.0] * 9, 10.0)
    assert one_hot == pytest.approx({"ess_ratio": 0.1, "top10_mass": 1, "gini": 0.9, "weight_max": 10, "mass_error": 0})
    nothing = {"ess_ratio": 1.0, "top10_mass": 0.0, "gini": 0.0, "weight_max": 0.0, "mass_error": 1.0}
    assert shape_of(0.0, 0.0) == nothing
    assert shape_of(1.0)["top10_mass"] == 1


def test_gini_and_top10_by_brute_force():
    weights = torch.rand(40, dtype=torch.float64) ** 3
    w = weights.numpy()
    measured = weight_shape(weights)
    assert measured["gini"] == pytest.approx(np.abs(w[:, None] - w[None]).mean() / (2 * w.mean()), abs=1e-12)
    assert measured["top10_mass"] == pytest.approx(np.sort(w)[-4:].sum() / w.sum(), abs=1e-12)
    assert measured["ess_ratio"] == pytest.approx(w.sum() ** 2 / (40 * (w**2).sum()), abs=1e-12)


def test_shapes_of_many_completions_are_those_of_each():
    """Whatever stands at tokens that are not masked, and where all weights of a completion are 0."""
    rng = torch.Generator().manual_seed(1)
    weights = torch.rand(6, 30, dtype=torch.float64, generator=rng) ** 3
    mask = torch.rand(6, 30, generator=rng) < torch.tensor([1.0, 0.7, 0.3, 0.5, 0.5, 0.0])[:, None]
    mask[5, 7] = True
    weights[3] = 0.0
    measured = weight_shapes(weights.masked_fill(~mask, torch.nan), mask)
    for row in range(6):
        expected = weight_shape(weights[row, mask[row]])
        assert {name: float(values[row]) for name, values in measured.items()} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "top"), [(1, 1), (9, 1), (14, 1), (16, 2), (24, 2), (26, 3), (99, 10)])
def test_the_top_tenth_is_the_nearest_whole_number_of_tokens(n: int, top: int):
    weights = torch.arange(1.0, n + 1, dtype=torch.float64)
    expected = sum(range(n - top + 1, n + 1)) / sum(range(1, n + 1))
    assert weight_shape(weights)["top10_mass"] == pytest.approx(expected, abs=1e-12)


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


@pytest.mark.parametrize("size", [1e-300, 1e-14, 1.0, 1e200])
def test_a_correlation_has_no_unit(size: float) -> None:
    ramp = torch.arange(8, dtype=torch.float64)[None]
    assert mean_correlation(size * ramp, ramp, torch.ones(1, 8, dtype=torch.bool)) == (pytest.approx(1.0), 1.0)
    assert mean_correlation(torch.full_like(ramp, 0.3 * size), ramp, torch.ones(1, 8, dtype=torch.bool)) == (0.0, 0.0)


def test_position_counts_masked_tokens():
    mask = torch.tensor([[False, True, True, False, True], [False] * 5])
    assert position_in(mask)[mask].tolist() == [0, 1, 2]


def test_the_standard_deviation_of_a_group_is_that_of_its_rewards_that_are_numbers() -> None:
    nan = math.nan
    groups = torch.tensor([[1, 0, nan, 1], [0, 0, 0, 0], [nan, nan, nan, 0.5], [nan] * 4], dtype=torch.float64)
    found = group_std(groups)
    assert found[:2].tolist() == pytest.approx([np.std([1, 0, 1], ddof=1), 0.0])
    assert found[2:].isnan().all(), "of fewer than two there is none"


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
