"""Means and differences over problems: by hand, against a plain bootstrap, and without a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oar_lightning.lab.comparison import differences, mean_over
from oar_lightning.lab.types import Measure
from oar_lightning.reporting.statistics import holm, sign_flip_p, sign_flip_ps

NAN = math.nan


def measure(better: str = "high", **values: tuple[float, ...]) -> Measure:
    return Measure("m", "a measure", better, values)


def test_the_interval_is_that_of_problems_drawn_with_replacement() -> None:
    rng = np.random.default_rng(0)
    problem = [i for i in range(30) for _ in range(1 + i % 3)]
    effect = rng.normal(size=30)
    values = [effect[p] + 0.1 * rng.normal() for p in problem]
    values[4] = NAN
    found = mean_over(values, problem)
    known = [(p, v) for p, v in zip(problem, values, strict=True) if not math.isnan(v)]
    assert found.mean == pytest.approx(np.mean([v for _, v in known]))
    assert found.n == len(problem) - 1
    grouped = [[v for p, v in known if p == q] for q in range(30)]
    drawn = [np.mean([v for q in rng.integers(0, 30, 30) for v in grouped[q]]) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    as_if_single = np.std([v for _, v in known]) / len(known) ** 0.5
    assert found.high - found.low > 1.2 * 2 * 1.96 * as_if_single, "completions of a problem are alike"


@pytest.mark.parametrize("problems", [3, 5, 9, 10])
def test_the_interval_of_few_problems_holds_the_truth_as_often_as_it_says(problems: int) -> None:
    """Of normal effects with three completions each the mean is one of independent ones; the bootstrap of five covers 83 %."""
    rng = np.random.default_rng(problems)
    problem = [i for i in range(problems) for _ in range(3)]
    held = []
    for _ in range(400 if problems < 10 else 100):
        found = mean_over((rng.normal(size=problems).repeat(3) + 0.3 * rng.normal(size=3 * problems)).tolist(), problem)
        held.append(found.low <= 0 <= found.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.03 if problems < 10 else 0.08)


def test_the_interval_of_few_problems_by_hand() -> None:
    """Problems of one, two and three completions: the ratio estimator, and Student's t of two degrees of freedom."""
    found = mean_over([1.0, 2.0, 4.0, 3.0, 3.0, 6.0], [0, 1, 1, 2, 2, 2])
    mean = 19 / 6
    residuals = (1 - mean, 6 - 2 * mean, 12 - 3 * mean)
    half = 4.3027 * math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 6
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=1e-4)
    assert math.isnan(mean_over([1.0, 2.0], [0, 1]).low), "two problems have none"


def test_differences_that_are_equal_but_for_rounding_have_no_interval() -> None:
    paired = np.array([0.3, 0.8, 1.3, 1.1]) - np.array([0.2, 0.7, 1.2, 1.0])
    assert len(set(paired.tolist())) > 1
    assert math.isnan(mean_over(paired.tolist(), [0, 1, 2, 3]).low)


@pytest.mark.parametrize("problems", [3, 10])
def test_problems_that_agree_have_no_interval_though_their_completions_differ(problems: int) -> None:
    """Each has a hit and a miss; one that has two of each, and is as much of a coin, changes nothing."""
    problem = [*np.arange(problems).repeat(2).tolist(), 0, 0]
    found = mean_over([1.0, 0.0] * (problems + 1), problem)
    assert (found.mean, found.n) == (0.5, 2 * problems + 2)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    thirds = mean_over([0.1, 0.2, 0.6, 0.3] * problems, np.arange(problems).repeat(4).tolist())
    assert math.isnan(thirds.low), "equal sums of numbers that round"
    assert mean_over([1.0, 0.0] * problems + [1.0, 1.0], problem).high > 0.55, "one that does not is scatter"


def test_completions_without_a_value_are_left_out() -> None:
    assert mean_over([NAN, 2.0, 4.0, NAN], [0, 1, 2, 2]).mean == 3.0
    alone = mean_over([1.0, 2.0], [7, 7])
    assert (alone.mean, alone.n) == (1.5, 2)
    assert math.isnan(alone.low)
    assert mean_over([NAN], [0]).n == 0
    assert math.isnan(mean_over([], []).mean)


def test_differences_are_paired_and_positive_where_better() -> None:
    found = differences([measure(base=(0.1, 0.2, NAN), good=(0.3, NAN, 0.9), same=(0.1, 0.2, 0.3))], "base", [0, 1, 2])
    by_name = {d.estimator: d for d in found}
    assert set(by_name) == {"good", "same"}
    assert by_name["good"].interval.mean == pytest.approx(0.2)
    assert by_name["good"].interval.n == 1
    assert by_name["same"].p == 1.0
    worse = differences([measure("low", base=(0.1, 0.2), good=(0.3, 0.4))], "base", [0, 1])
    assert worse[0].interval.mean == pytest.approx(-0.2)


def test_p_values_are_those_of_whole_problems() -> None:
    """Eight problems, all with the same sign: 2 of the 256 sign patterns are as large, however many completions each has."""
    problem = [i for i in range(8) for _ in range(5)]
    rng = np.random.default_rng(3)
    better = tuple(0.5 + 0.01 * rng.random() for _ in problem)
    (found,) = differences([measure(base=(0.0,) * 40, good=better)], "base", problem)
    assert found.p == pytest.approx(2 / 256)


def test_all_differences_of_a_table_are_adjusted_together() -> None:
    problem = list(range(8))
    rng = np.random.default_rng(4)
    values = {name: tuple(rng.normal(shift, 0.3, 8)) for name, shift in (("a", 0), ("b", 0.5), ("c", 1), ("d", 0.1))}
    undefined = measure(base=(NAN,) * 8, e=(1.0,) * 8)
    found = differences([measure(base=(0.0,) * 8, **values), undefined], "base", problem)
    expected = [sign_flip_p(np.array(values[name])) for name in "abcd"]
    assert [d.p for d in found[:4]] == pytest.approx(expected)
    assert [d.p_holm for d in found[:4]] == pytest.approx(holm(expected))
    assert math.isnan(found[4].p_holm)


def test_a_problem_without_the_measure_does_not_count() -> None:
    few = np.random.default_rng(5).normal(0.3, 1, 9)
    (p,) = sign_flip_ps(np.concatenate([few, np.zeros(3)])[:, None])
    assert p == pytest.approx(sign_flip_p(few))
