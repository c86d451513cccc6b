"""Reliability and ceilings of values and estimates whose noise is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.lab.measures import measures_of
from oar_lightning.lab.reliability import own_reliability, reliability, spearman_brown, with_ceilings
from oar_lightning.lab.truth import around_free, monte_carlo
from oar_lightning.lab.types import Estimate, Studied, Truth
from oar_lightning.lab.values import ValueConfig, half_width

COUNT, LENGTH = 40, 300
RNG = np.random.default_rng(0)


def drawn(*parts: float) -> torch.Tensor:
    """Sums of independent normal numbers of these variances, one a token."""
    return sum(math.sqrt(v) * torch.tensor(RNG.normal(size=(COUNT, LENGTH + 2))) for v in parts)


@pytest.fixture(scope="module")
def noisy() -> tuple[Studied, Truth, Estimate]:
    """An effect of variance 1; truth is two halves with a noise of variance 2 each, an estimate has noise of variance 1."""
    rollouts = rollouts_of([{"before": [1], "reasoning": [2] * LENGTH, "answer": [3]}] * COUNT)
    nothing, rows = torch.zeros(rollouts.token_ids.shape), tuple(range(COUNT))
    studied = Studied(rollouts, rows, ("",) * COUNT, (True,) * COUNT, nothing, nothing, rollouts.reasoning_mask)
    effect = drawn(1)
    halves = (effect + drawn(2), effect + drawn(2))
    values = (halves[0] + halves[1]) / 2
    truth = Truth("mc", rollouts.reasoning_mask, values.abs() > 1, values, halves)
    first, second = effect + drawn(1), effect + drawn(1)
    return studied, truth, Estimate("it", first, first, signed=True, seconds=0.0, again=second)


def test_the_halves_tell_the_whole(noisy: tuple[Studied, Truth, Estimate]) -> None:
    """Each half correlates with the other at 1/3, so both together would with two others at 1/2; Spearman's is 0.95 of that."""
    studied, truth, _ = noisy
    found = reliability(truth, studied, decisive=1.0)
    assert found is not None
    assert found.direction == pytest.approx(0.5, abs=0.04)
    assert 0 < found.size < found.direction
    assert 0.5 < found.half_auroc < 0.8
    assert reliability(Truth("exact", truth.known, truth.decisive), studied, 1.0) is None


def test_a_half_at_the_limit_is_decisive(noisy: tuple[Studied, Truth, Estimate]) -> None:
    """Each half ranks the decisive token of the other first; 0.7 - 0.5 is less than 0.2 in binary."""
    rollouts = rollouts_of([{"before": [1], "reasoning": [2, 2, 2], "answer": [3]}])
    nothing = torch.zeros(rollouts.token_ids.shape)
    studied = Studied(rollouts, (0,), ("",), (True,), nothing, nothing, rollouts.reasoning_mask)
    half = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    half[0, 1:4] = torch.tensor([0.7 - 0.5, 0.1, 0.0], dtype=torch.float64)
    found = reliability(Truth("mc", rollouts.reasoning_mask, half > 0.15, half, (half, half)), studied, decisive=0.2)
    assert found is not None
    assert found.half_auroc == 1.0


def test_values_that_are_all_equal_have_no_reliability_though_prefixes_get_more_draws_by_their_first() -> None:
    """Each row's tokens leave the value as it is, so that no half agrees with the other. Those of all draws would."""
    rows, tokens = 60, 40
    rollouts = rollouts_of([{"before": [1], "reasoning": [2] * tokens, "answer": [3]}] * rows)
    nothing = torch.zeros(rollouts.token_ids.shape)
    studied = Studied(rollouts, tuple(range(rows)), ("",) * rows, (True,) * rows, nothing, nothing, rollouts.reasoning_mask)
    config, rng = ValueConfig(), np.random.default_rng(0)
    worth, rewards = rng.beta(4, 1, rows), {}
    for prefix in around_free(studied):
        draws = (rng.random(config.continuations) < worth[prefix.row]).astype(float)
        enough = half_width(draws[: config.batch]) <= config.half_width
        rewards[prefix] = draws[: config.batch] if enough else draws
    assert {len(drawn) for drawn in rewards.values()} == {8, 16}
    first, every = (
        reliability(monte_carlo(studied, rewards, 0.3, everywhere), studied, 0.3) for everywhere in (config.everywhere, None)
    )
    assert first is not None
    assert every is not None
    assert first.direction == pytest.approx(0.0, abs=0.05)
    assert every.direction > 0.2


def test_completions_without_a_second_half_are_left_out(noisy: tuple[Studied, Truth, Estimate]) -> None:
    studied, truth, _ = noisy
    one, other = truth.halves
    without = dataclasses.replace(truth, halves=(one, other.index_fill(0, torch.arange(3), torch.nan)))
    rest = torch.arange(3, len(one))
    shorter = dataclasses.replace(studied, free=studied.free[rest])
    expected = reliability(dataclasses.replace(truth, known=truth.known[rest], halves=(one[rest], other[rest])), shorter, 1.0)
    assert reliability(without, studied, 1.0) == expected
    nothing = reliability(dataclasses.replace(truth, halves=(one, torch.full_like(other, torch.nan))), studied, 1.0)
    assert nothing is not None
    assert math.isnan(nothing.size)


def test_nothing_perfect_beats_the_ceiling(noisy: tuple[Studied, Truth, Estimate]) -> None:
    """The estimate knows the effect and has noise of its own alone: it reaches its ceiling, sqrt(1/2 * 1/2)."""
    studied, truth, estimate = noisy
    assert own_reliability(truth, estimate, studied) < 0.5, "of sizes"
    found = with_ceilings(measures_of(truth, [estimate], studied), truth, reliability(truth, studied, 1.0), [estimate], studied)
    ceilings = {m.key: m.ceiling for m in found if m.ceiling}
    assert set(ceilings) == {"mc.spearman_free", "mc.direction_free"}
    by_key = {m.key: np.mean(m.values["it"]) for m in found}
    assert by_key["mc.direction_free"] == pytest.approx(ceilings["mc.direction_free"]["it"], abs=0.03)
    assert by_key["mc.spearman_free"] == pytest.approx(ceilings["mc.spearman_free"]["it"], abs=0.04)


def test_groups_of_equal_rewards_lower_the_ceiling_of_directions(noisy: tuple[Studied, Truth, Estimate]) -> None:
    """Their token advantages are 0, and so are their correlations; scores, and so sizes, are what they are."""
    studied, truth, estimate = noisy
    silent = dataclasses.replace(estimate, advantages=estimate.advantages.clone())
    silent.advantages[: COUNT // 4] = 0.0
    found = reliability(truth, studied, 1.0)
    whole, less = (
        {m.key: m for m in with_ceilings(measures_of(truth, [one], studied), truth, found, [one], studied)}
        for one in (estimate, silent)
    )
    key = "mc.direction_free"
    assert less[key].ceiling["it"] == pytest.approx(0.75 * whole[key].ceiling["it"])
    assert np.mean(less[key].values["it"]) == pytest.approx(less[key].ceiling["it"], abs=0.03)
    assert less["mc.spearman_free"].ceiling == whole["mc.spearman_free"].ceiling


def test_what_draws_nothing_is_reliable(noisy: tuple[Studied, Truth, Estimate]) -> None:
    studied, truth, estimate = noisy
    still = Estimate("still", estimate.scores, estimate.advantages, signed=True, seconds=0.0)
    assert own_reliability(truth, still, studied) == 1.0


def test_it_does_not_matter_which_half_comes_first(noisy: tuple[Studied, Truth, Estimate]) -> None:
    """A half without any difference tells nothing of the other: 0 in either order."""
    studied, truth, estimate = noisy
    halves = tuple(half.clone() for half in truth.halves)
    halves[0][0] = 0.0
    turned = dataclasses.replace(truth, halves=halves[::-1])
    found, again = (reliability(one, studied, 1.0) for one in (dataclasses.replace(truth, halves=halves), turned))
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(again))
    flat = dataclasses.replace(estimate, again=torch.zeros_like(estimate.scores))
    assert own_reliability(truth, flat, studied) == 0.0


def test_a_row_without_scores_is_left_out(noisy: tuple[Studied, Truth, Estimate]) -> None:
    studied, truth, estimate = noisy
    scores = estimate.scores.clone()
    scores[0] = math.nan
    assert own_reliability(truth, dataclasses.replace(estimate, scores=scores, again=scores), studied) == pytest.approx(1.0)


def test_spearman_brown() -> None:
    assert spearman_brown(0.5) == pytest.approx(2 / 3)
    assert spearman_brown(1.0) == 1.0
    assert spearman_brown(-0.2) == spearman_brown(0.0) == 0.0
    assert math.isnan(spearman_brown(math.nan))
