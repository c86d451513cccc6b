"""Statistics against enumeration and distributions that are known."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from oar_lightning.common.bootstrap import bootstrap_bounds
from oar_lightning.reporting.statistics import (
    BOOTSTRAP_FROM,
    DRAWS,
    EXACT_UP_TO,
    Interval,
    holm,
    mean_interval,
    pareto_front,
    ratio_interval,
    sign_flip_p,
    sign_flip_ps,
    smallest_p,
)


# 97.5 % quantiles of Student's t with n - 1 degrees of freedom, from printed tables
@pytest.mark.parametrize(("n", "quantile"), [(3, 4.303), (5, 2.776), (9, 2.306)])
def test_few_values_have_the_interval_of_students_t(n: int, quantile: float) -> None:
    values = 0.5 + np.random.default_rng(n).normal(size=n)
    half = quantile * (((values - values.mean()) ** 2).sum() / (n - 1) / n) ** 0.5
    found = mean_interval(values)
    expected = (values.mean(), values.mean() - half, values.mean() + half, n)
    assert (found.mean, found.low, found.high, found.n) == pytest.approx(expected, rel=3e-4)


def test_a_ratios_interval_is_of_those_that_a_t_test_does_not_exclude() -> None:
    rng = np.random.default_rng(1)
    others = rng.normal(1.0, 0.6, 12)
    values = 0.7 * others + rng.normal(0.2, 0.4, 12)
    found = ratio_interval(values, others)
    assert found.mean == pytest.approx(values.mean() / others.mean())
    ratios = np.linspace(-1, 4, 5001)
    not_excluded = ratios[ttest_1samp(values - ratios[:, None] * others, 0, axis=1).pvalue >= 0.05]
    assert (found.low, found.high) == pytest.approx((not_excluded[0], not_excluded[-1]), abs=2e-3)


@pytest.mark.parametrize(
    ("values", "others"), [((1.0, 2.0), (1.0, 1.1)), ((1.0, 2.0, 3.0), (1.0, -1.0, 0.1))], ids=["two pairs", "perhaps 0"]
)
def test_a_ratio_that_is_not_bounded_has_no_interval(values: tuple[float, ...], others: tuple[float, ...]) -> None:
    assert math.isnan(ratio_interval(values, others).low)


@pytest.mark.parametrize("of_one", [(2.0, 2.0, 2.0), (0.0, 0.0, 0.0), (0.1, 0.2, 0.4), (0.1 + 0.2, 0.3, 0.3)])
def test_a_ratio_has_an_interval_where_a_mean_has_one(of_one: tuple[float, ...]) -> None:
    """Its interval by one is that of the mean; equal ratios of different numbers have none either."""
    found, mean = ratio_interval(of_one, [1.0, 1.0, 1.0]), mean_interval(of_one)
    assert (found.mean, found.low, found.high) == pytest.approx((mean.mean, mean.low, mean.high), nan_ok=True)
    assert math.isnan(ratio_interval([0.3, 0.6, 0.9], [0.1, 0.2, 0.3]).low)


def test_a_ratio_to_nothing_is_none() -> None:
    found = ratio_interval([1.0, 2.0, 3.0], [-1.0, 0.0, 1.0])
    assert all(np.isnan(value) for value in (found.mean, found.low, found.high))


def test_from_ten_values_on_the_interval_is_the_bootstraps() -> None:
    values = np.random.default_rng(0).exponential(size=BOOTSTRAP_FROM)
    found = mean_interval(values)
    assert [found.low, found.high] == bootstrap_bounds(values, DRAWS).tolist()
    assert found.high - found.mean > found.mean - found.low, "of a skewed distribution, unlike Student's t"


def test_the_interval_of_three_values_covers_the_true_mean() -> None:
    rng = np.random.default_rng(0)
    found = [mean_interval(rng.normal(size=3)) for _ in range(400)]
    assert np.mean([one.low < 0 < one.high for one in found]) == pytest.approx(0.95, abs=0.033)


def test_equal_values_have_no_interval() -> None:
    assert np.isnan([mean_interval([0.5] * n).low for n in (2, 12)]).all()


@pytest.mark.parametrize("values", [[0.5], [0.4, 0.6]])
def test_one_or_two_values_have_no_interval(values: list[float]) -> None:
    found = mean_interval(values)
    assert (found.mean, found.n) == (pytest.approx(0.5), len(values))
    assert np.isnan([found.low, found.high]).all()


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])
    with pytest.raises(ValueError, match="at least one pair"):
        sign_flip_p([])


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sign_flips_agree_with_enumeration(n: int) -> None:
    d = np.random.default_rng(n).normal(0.5, 1, size=n)
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product([1, -1], repeat=n)]
    assert sign_flip_p(d) == pytest.approx(np.mean([s >= abs(d.sum()) - 1e-12 for s in sums]))


def test_drawn_sign_flips_are_near_the_exact_value() -> None:
    d = [3, -1, 2, 2, -2, 1, 4, -1, 1, 2, -3, 2, 1, 1, -1, 2, 3, -2, 1, 1, -1, 2]
    assert len(d) > EXACT_UP_TO
    sums = Counter({0: 1})  # the exact distribution of the sum, difference by difference
    for x in d:
        sums = Counter({s: sums[s - x] + sums[s + x] for s in range(-sum(map(abs, d)), sum(map(abs, d)) + 1)})
    exact = sum(count for s, count in sums.items() if abs(s) >= abs(sum(d))) / 2 ** len(d)
    assert sign_flip_p(d) == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 100_000) ** 0.5)


def test_differences_of_one_sign_give_the_smallest_p_value_and_equal_ones_the_largest() -> None:
    found = [sign_flip_p([0.1] * n) for n in range(1, 7)]
    assert found == [smallest_p(n) for n in range(1, 7)] == [2 / 2**n for n in range(1, 7)]
    assert smallest_p(5) > 0.05 > smallest_p(6)
    assert sign_flip_p([0.1] * 40) == smallest_p(40) == 1 / 100_001, "where signs are drawn, the observed ones count, too"
    assert sign_flip_p([0.1, 0.2, 0.3]) == 0.25, "sums of the same numbers in another order differ in their last bits"
    assert sign_flip_p([0.0, 0.0]) == 1
    assert sign_flip_p([0.5, -0.5]) == 1
    assert sign_flip_p([0.1, 0.2, -0.3, 0.4, -0.4]) == 1, "the observed sum is 0 but for its last bits"


def test_several_tests_at_once_are_each_alone() -> None:
    assert sign_flip_ps(np.zeros((5, 2))) == [1.0, 1.0]
    assert sign_flip_ps(np.ones((1, 1))) == [1.0]
    several = np.random.default_rng(5).normal(0.5, 1, (9, 3))
    assert sign_flip_ps(several) == pytest.approx([sign_flip_p(column) for column in several.T])
    many = np.random.default_rng(6).normal(0.3, 1, (40, 2))
    assert sign_flip_ps(many, 20_000) == pytest.approx(sign_flip_ps(many), abs=0.01)


def test_the_test_keeps_its_level_without_an_effect() -> None:
    rng = np.random.default_rng(0)
    p = np.array(sign_flip_ps(rng.standard_t(3, size=(1500, 7)).T))
    assert (p <= 0.05).mean() == pytest.approx(3 * 2 / 2**7, abs=0.018)  # the 3 most extreme of 64 pairs of patterns
    assert (p <= 0.5).mean() == pytest.approx(0.5, abs=0.04)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.5, 0.9]) == [1, 1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_the_pareto_front_is_what_nothing_beats() -> None:
    rng = np.random.default_rng(0)
    drawn = [(int(cost), int(min(cost, value))) for cost, value in rng.integers(0, 12, (40, 2))]  # what is good costs
    points = [*drawn, *drawn[::2]]
    costs, values = zip(*points, strict=True)
    beaten = [any((c <= a and v > b) or (c < a and v >= b) for c, v in points) for a, b in points]
    front = pareto_front(costs, values)
    assert sorted(front) == [i for i, b in enumerate(beaten) if not b]
    assert [costs[i] for i in front] == sorted(costs[i] for i in front)
    assert 3 < len({points[i] for i in front}) < len(front), "two alike are both on it"
    assert pareto_front([], []) == []


def test_what_is_not_known_is_not_on_the_pareto_front() -> None:
    assert pareto_front([1, 2, 3], [math.nan, 0.5, 0.6]) == [1, 2]
    assert pareto_front([math.nan, 2, 1], [0.9, 0.5, 0.4]) == [2, 1]


def test_an_interval_is_written_with_its_bounds_where_it_has_any():
    assert f"{Interval(1.0, -0.25, 2.25, 3):+.1f}" == "+1.0 [-0.2, +2.2]"
    assert f"{Interval(1.0, math.nan, math.nan, 2):.2f}" == "1.00 (n = 2)"
    assert f"{Interval(1.0, math.nan, math.nan, 3):.2f}" == "1.00", "equal values"
