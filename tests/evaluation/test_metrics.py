"""Accuracies and their intervals against brute force and known distributions."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from scipy.stats import t as student_t
from support.results import result

from oar_lightning.common.wilson import wilson_bounds
from oar_lightning.evaluation.metrics import evaluation_metrics, interval_over_problems, level_groups, majority_vote, pass_at_k
from oar_lightning.evaluation.result import ProblemResult


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n: int) -> None:
    correct = torch.tril(torch.ones(n + 1, n), -1)  # 0..n correct
    correct = correct[:, torch.randperm(n)]
    for k in range(1, n + 1):
        brute = [
            sum(any(row[i] > 0 for i in subset) for subset in itertools.combinations(range(n), k)) / math.comb(n, k)
            for row in correct.tolist()
        ]
        torch.testing.assert_close(pass_at_k(correct, k), torch.tensor(brute, dtype=torch.double))


def test_pass_at_1_is_the_mean() -> None:
    correct = torch.randint(0, 2, (20, 6)).double()
    torch.testing.assert_close(pass_at_k(correct, 1), correct.mean(1))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_enough_samples(k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs 1 <= k <= 4"):
        pass_at_k(torch.ones(2, 4), k)


@pytest.mark.parametrize("alike", [0.05, 1.0, 50.0], ids=["alike", "mixed", "independent"])
def test_the_interval_covers_the_truth_as_often_as_it_says(alike: float) -> None:
    """Problems' rates are drawn from a beta distribution of mean 0.8: nearly 0 or 1, spread out, or nearly equal."""
    rates = np.random.default_rng(0).beta(0.8 * alike, 0.2 * alike, (2000, 40))
    correct = np.random.default_rng(1).random((2000, 40, 4)) < rates[..., None]
    bounds = [interval_over_problems(torch.tensor(values), 4) for values in correct.mean(2)]
    assert 0.92 <= np.mean([low <= 0.8 <= high for low, high in bounds]) <= 0.985


@pytest.mark.parametrize(("problems", "samples"), [(3, 16), (5, 16), (5, 64), (10, 16)])
def test_the_interval_of_few_problems_covers_the_truth_nearly_as_often(problems: int, samples: int) -> None:
    """With normal quantiles it was 81 to 94 %."""
    rates = np.random.default_rng(0).random((2000, problems))
    correct = np.random.default_rng(1).random((2000, problems, samples)) < rates[..., None]
    bounds = [interval_over_problems(torch.tensor(values), samples) for values in correct.mean(2)]
    assert 0.925 <= np.mean([low <= 0.5 <= high for low, high in bounds]) <= 0.985


def test_the_interval_of_one_draw_a_problem_is_wilsons() -> None:
    for hits, n in ((0, 8), (3, 8), (8, 8), (20, 64), (1, 1)):
        expected = binomtest(hits, n).proportion_ci(method="wilson")
        found = interval_over_problems((torch.arange(n) < hits).double())
        assert found == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert interval_over_problems(torch.ones(8).double())[1] == 1.0


def test_the_interval_of_several_draws_counts_problems_where_they_agree_and_draws_where_they_scatter_alike() -> None:
    agree = interval_over_problems(torch.tensor([0.0, 1.0] * 20).double(), 4)
    assert agree == interval_over_problems(torch.tensor([0.0, 1.0] * 20).double())
    narrow = wilson_bounds(0.5, 160 * (student_t.ppf(0.975, 159) / student_t.ppf(0.975, 39)) ** 2)
    scattered = interval_over_problems(torch.tensor([0.5, 0.5, 0.25, 0.75] * 10).double(), 4)
    assert scattered == pytest.approx(narrow), "not narrower than all draws make it"
    thirds = interval_over_problems(torch.full((9,), 1 / 3).double(), 3)
    assert thirds == pytest.approx(wilson_bounds(1 / 3, 9)), "nor does the rounding of their mean"
    equal = interval_over_problems(torch.full((8,), 0.5).double(), 4)
    assert equal == interval_over_problems(torch.tensor([0.0, 1.0] * 4).double()), "equal values tell nothing of their scatter"


def test_the_interval_of_three_problems_by_hand() -> None:
    """Their variance is 0.0625, so that 12 draws would scatter alike; Student's quantiles of 11 and 2 degrees make 3.14."""
    n = 12 * (2.200985 / 4.302653) ** 2  # from a table
    assert interval_over_problems(torch.tensor([0.25, 0.5, 0.75]).double(), 16) == pytest.approx(
        wilson_bounds(0.5, n), abs=1e-5
    )


def test_metrics() -> None:
    metrics = evaluation_metrics([result([0, 1, 1, None], 0, truncated=1), result([0, 0, 0, 0], 1)])
    intervals = {key: metrics.pop(key) for key in list(metrics) if key.endswith(("_low", "_high"))}
    assert metrics == pytest.approx(
        {
            "avg_at_4": 0.625,
            "pass_at_1": 0.625,
            "pass_at_2": 0.75,
            "pass_at_4": 1.0,
            "maj_at_4": 0.5,
            "greedy": 0.5,
            "answered": 7 / 8,
            "truncated": 1 / 8,
        }
    )
    assert set(intervals) == {f"{m}_{end}" for m in ("avg_at_4", "pass_at_4", "maj_at_4", "greedy") for end in ("low", "high")}
    assert intervals["avg_at_4_low"] < 0.25, "of two problems"
    expected = binomtest(2, 2).proportion_ci(method="wilson")
    assert intervals["pass_at_4_low"] == pytest.approx(expected.low, abs=1e-6)
    assert intervals["pass_at_4_high"] == 1.0
    assert not any("@" in key for key in metrics), "MLflow refuses it"


@pytest.mark.parametrize(("k", "passes"), [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (8, {1, 2, 4, 8})])
def test_pass_is_reported_at_powers_of_two_and_at_k(k: int, passes: set[int]) -> None:
    metrics = evaluation_metrics([result([0] * k)])
    assert {key for key in metrics if re.fullmatch(r"pass_at_\d+", key)} == {f"pass_at_{j}" for j in passes}
    assert "greedy" not in metrics
    assert {f"avg_at_{k}", f"maj_at_{k}", f"pass_at_{k}_low"} <= set(metrics)


def test_metrics_by_level_are_those_of_its_problems_alone() -> None:
    levels = ["Level 5", "Level 10", "Level 5", "very hard!", "", "Level 5"]
    results = [result([random.Random(i + j).randrange(2) for j in range(4)], level=level) for i, level in enumerate(levels)]
    metrics = evaluation_metrics(results)
    names = {key.split("/")[0] for key in metrics if "/" in key}
    assert names == {"level_5", "level_10", "level_very_hard", "level_none"}
    for name, level in (("level_5", "Level 5"), ("level_none", "")):
        own = evaluation_metrics([dataclasses.replace(r, level="") for r in results if r.level == level])
        assert metrics[f"{name}/problems"] == levels.count(level)
        for key in ("avg_at_4", "avg_at_4_low", "avg_at_4_high"):
            assert metrics[f"{name}/{key}"] == pytest.approx(own[key])
    valid = re.compile(r"[/\w.\- :]+")  # what MLflow says it takes
    assert all(valid.fullmatch(key) for key in metrics)


def test_levels_that_differ_in_signs_only_stay_apart() -> None:
    assert level_groups(["a+", "a-", "a+"]) == {"a": [0, 2], "a_2": [1]}
    assert level_groups(["", ""]) == {}
    assert level_groups(["困难", "", "简单"]) == {"none": [1], "困难": [0], "简单": [2]}
    assert list(level_groups(["10", "9", "b"])) == ["9", "10", "b"]


@pytest.mark.parametrize("results", [[], [result([0]), result([0, 1])]], ids=["none", "uneven"])
def test_metrics_need_problems_with_as_many_samples_each(results: list[ProblemResult]) -> None:
    with pytest.raises(ValueError, match="the same number of samples"):
        evaluation_metrics(results)


@pytest.mark.parametrize("seed", range(30))
def test_majority_vote_is_the_mean_over_all_ways_to_break_ties(seed: int) -> None:
    """Brute force: of the most frequent, the one that comes first in some order of preference wins; all orders count alike."""
    rng = random.Random(seed)
    classes = [rng.choice([0, 1, 2, None]) for _ in range(rng.randint(1, 6))]
    votes = [c for c in classes if c is not None]
    orders = list(itertools.permutations(set(votes))) if votes else []
    wins = sum(max(order, key=votes.count) == 0 for order in orders)  # max keeps the first of equals
    assert majority_vote(classes) == pytest.approx(wins / max(1, len(orders)))
