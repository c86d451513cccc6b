"""Group advantages against TRL's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.toy import floats, golden

from oar_lightning.objective.advantage import (
    AdvantageConfig,
    centred_and_std,
    combine_rewards,
    group_advantages,
    zero_std_groups,
)

CASES = golden("group_advantages")["cases"]


def rewards_of(case) -> torch.Tensor:
    return floats(golden("group_advantages")["rewards"][case["rewards"]])


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['rewards']}-{c['scale_rewards']}-{c['aggregation'][:4]}")
def test_golden(case):
    weights = floats(case["reward_weights"])
    config = AdvantageConfig(scale=case["scale_rewards"], aggregation=case["aggregation"])
    actual = group_advantages(rewards_of(case), weights, case["num_generations"], config)
    torch.testing.assert_close(actual, floats(case["advantages_f64"]), rtol=0, atol=1e-10)


def test_all_golden_cases_are_there():
    assert len(CASES) == 36
    assert {c["aggregation"] for c in CASES} == {"sum_then_normalize", "normalize_then_sum"}
    assert {c["scale_rewards"] for c in CASES} == {"group", "batch", "none"}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["aggregation"] == "sum_then_normalize"], ids=lambda c: f"{c['rewards']}-{c['scale_rewards']}"
)
def test_share_of_zero_std_groups_is_trls(case):
    total = combine_rewards(rewards_of(case), floats(case["reward_weights"]))
    if case["scale_rewards"] == "batch":  # TRL then looks at the batch's spread
        total, size = total, len(total)
    else:
        size = case["num_generations"]
    share = float(zero_std_groups(total, size).double().mean())
    assert share == pytest.approx(case["metrics"]["frac_reward_zero_std"], abs=1e-12)


def test_hand_computed():
    rewards = torch.tensor([[1.0], [0.0], [0.0], [0.0], [5.0], [5.0], [5.0], [5.0]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    none = group_advantages(rewards, one, 4, AdvantageConfig(scale="none"))
    assert none.tolist() == [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0]
    # unbiased variance of (1, 0, 0, 0): (9 + 3) / 16 / 3 = 1/4
    assert group_advantages(rewards, one, 4).tolist() == pytest.approx([x / 0.5001 for x in none.tolist()], abs=1e-12)


def test_a_group_of_two_by_hand():
    rewards, one = torch.tensor([[1.0], [0.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    # unbiased variance 1/2
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert group_advantages(rewards, one, 2).tolist() == pytest.approx([expected, -expected], abs=1e-12)


def test_missing_scores_and_weights():
    nan = float("nan")
    rewards = torch.tensor([[1.0, nan], [nan, nan], [0.5, 2.0]], dtype=torch.float64)
    total = combine_rewards(rewards, torch.tensor([2.0, 10.0], dtype=torch.float64))
    assert total[0] == 2
    assert math.isnan(total[1])
    assert total[2] == 21
    advantages = group_advantages(rewards, torch.tensor([2.0, 10.0], dtype=torch.float64), 3, AdvantageConfig(scale="none"))
    assert advantages.tolist() == [-9.5, 0, 9.5]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_a_term_of_weight_0_does_not_score_a_row(aggregation) -> None:
    """Format is there by default, with weight 0, and always applies."""
    nan, config = float("nan"), AdvantageConfig(aggregation=aggregation)
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [nan, 1.0], [nan, 0.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
    alone = group_advantages(rewards[:, :1], weights[:1], 4, config)
    assert group_advantages(rewards, weights, 4, config).tolist() == pytest.approx(alone.tolist())
    assert combine_rewards(rewards, weights).isnan().tolist() == [False, False, True, True]
    assert combine_rewards(rewards, 0 * weights).tolist() == [0.0] * 4, "nothing counts: no row is left out for it"


def test_an_unscored_row_is_in_no_standard_deviation() -> None:
    nan = float("nan")
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.3], [nan, nan], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    rewards, weights = rewards.double(), torch.ones(2, dtype=torch.float64)
    found = group_advantages(rewards, weights, 4, AdvantageConfig(aggregation="normalize_then_sum")).numpy()
    groups = rewards.numpy().reshape(2, 4, 2)
    spread = np.nanstd(groups, 1, ddof=1, keepdims=True)
    totals = ((groups - np.nanmean(groups, 1, keepdims=True)) / (spread + 1e-4)).sum(-1).reshape(-1)
    expected = (totals - np.nanmean(totals)) / (np.nanstd(totals, ddof=1) + 1e-4)
    np.testing.assert_allclose(found, np.nan_to_num(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_groups_are_independent_and_shift_does_not_matter(scale):
    rewards = torch.randn(12, 1, dtype=torch.float64)
    one, config = torch.ones(1, dtype=torch.float64), AdvantageConfig(scale=scale)
    together = group_advantages(rewards, one, 4, config)
    apart = torch.cat([group_advantages(part, one, 4, config) for part in rewards.split(4)])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    torch.testing.assert_close(group_advantages(rewards + 3, one, 4, config), together, rtol=0, atol=1e-12)
    torch.testing.assert_close(together.view(3, 4).sum(1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_zero_std_groups():
    nan = float("nan")
    rewards = torch.tensor(
        [1.0, 1.0, 0.0, 1.0, nan, nan, nan, 0.5, nan, 0.0, 0.3, nan, 0.1 + 0.2, 0.30000000000000004, 0, 1e-9]
    )
    assert zero_std_groups(rewards, 2).tolist() == [True, False, True, True, True, True, True, False]


def test_partial_group_is_an_error():
    with pytest.raises(ValueError, match=r"7 completions are not whole groups of update\.group_size=4"):
        group_advantages(torch.zeros(7, 1), torch.ones(1), 4)


@pytest.mark.parametrize(
    ("scale", "aggregation"),
    [*((scale, "sum_then_normalize") for scale in ("group", "batch", "none")), ("group", "normalize_then_sum")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_have_no_advantage_whatever_their_sum_rounds_to(scale, aggregation, dtype):
    """What is exactly 0 is neither scored nor learnt from."""
    equal = torch.tensor([0.1, 0.7], dtype=dtype).expand(6, 2)
    other = torch.rand(6, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0, 0.2], dtype=dtype)
    advantages = group_advantages(torch.cat([equal, other]), weights, 6, AdvantageConfig(scale, aggregation))
    assert not advantages[:6].any()
    assert advantages[6:].all()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_masked_spread_against_numpy(size: int) -> None:
    rng = np.random.default_rng(size)
    scores, mask = rng.normal(size=(4, 9)), rng.random((4, 9)) < 0.6
    mask[:, 0] = mask[:, 1] = True
    centred, std = centred_and_std(torch.tensor(scores), torch.tensor(mask), size)
    for group in range(4 // size):
        rows = slice(group * size, (group + 1) * size)
        inside = scores[rows][mask[rows]]
        assert float(std[group]) == pytest.approx(inside.std())
        expected = np.where(mask[rows], scores[rows] - inside.mean(), 0.0)
        assert centred[group].numpy() == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.1, 0.7, -1 / 3])
def test_equal_scores_and_none_lie_exactly_0_apart(value: float) -> None:
    scores = torch.full((2, 7), value, dtype=torch.float64)
    mask = torch.ones(2, 7, dtype=torch.bool)
    assert centred_and_std(scores, mask, 2)[1].tolist() == [[[0.0]]]
    assert centred_and_std(scores, ~mask, 1)[1].flatten().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_what_centring_leaves_of_equal_scores_is_no_spread(value: float) -> None:
    scores = torch.full((1, 3), value, dtype=torch.float64)
    centred, std = centred_and_std(scores, torch.ones(1, 3, dtype=torch.bool), 1)
    assert centred.any(), "three of these do not sum to three times one"
    assert std.tolist() == [[[0.0]]]


def test_a_scale_that_has_no_effect_is_refused():
    with pytest.raises(ValueError, match=r"advantage\.scale=none has no effect with advantage\.aggregation=normalize_then_sum"):
        AdvantageConfig("none", "normalize_then_sum")
