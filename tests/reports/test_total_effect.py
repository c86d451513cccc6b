"""The total-effect study: its truth is that of a policy whose values are known, its statistics by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.fixtures import LengthReward, make_stage, tiny_policy
from support.study_scripts import load_script

from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem

measure = load_script("total_effect")


def test_area_under_the_curve_by_hand() -> None:
    wanted = torch.tensor([True, False, True, False])
    assert measure.auroc(torch.tensor([3.0, 2.0, 1.0, 0.0]), wanted) == 0.75
    assert measure.auroc(torch.ones(4), wanted) == 0.5


def test_an_interval_holds_the_value_and_shrinks_with_completions() -> None:
    wide, narrow = (
        measure.interval(lambda rows, x=torch.randn(n, generator=torch.Generator().manual_seed(n)): float(x[rows].mean()), n)
        for n in (10, 1000)
    )
    for value, low, high in (wide, narrow):
        assert low < value < high
    assert narrow[2] - narrow[1] < 0.2 * (wide[2] - wide[1])


def test_truth_is_on_free_tokens_and_its_halves_are_independent() -> None:
    policy = tiny_policy()
    stage, sampling = make_stage(policy, LengthReward()), SamplingConfig(max_new_tokens=5)
    rollouts = stage(policy.model, [MathProblem("1 + 1 =", "2"), MathProblem("2 + 1 =", "3")], 1, sampling, [3, 4])
    rollouts = dataclasses.replace(rollouts, reasoning_mask=rollouts.response_mask, prediction_states=None)
    halves = measure.truth(policy.model, rollouts, stage, sampling, 8)
    free = measure.free_tokens(policy.model, rollouts)
    assert free.any()
    assert not halves[:, ~free].any()
    assert not torch.equal(halves[0], halves[1])


@pytest.mark.parametrize("freedom", ["none", "weight", "mask"])
def test_methods_are_compared_with_exact_scores_of_the_same_freedom(freedom: str) -> None:
    names = [name for name, (_, compared) in measure.methods().items() if compared == freedom]
    assert any("total effect" in name for name in names)
    assert all("freedom" not in name or f"freedom {freedom}" in name for name in names)
