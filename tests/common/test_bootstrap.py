"""Intervals against the enumeration of all resamples, and against the normal one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oar_lightning.common.bootstrap import BATCH, bootstrap_bounds


@pytest.mark.parametrize("n", [4, 5, 6])
def test_bounds_are_the_quantiles_of_all_resamples(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    every = np.array([values[list(chosen)].mean() for chosen in itertools.product(range(n), repeat=n)])
    low, high = bootstrap_bounds(values, 10_000)
    for bound, share in ((low, 0.025), (high, 0.975)):  # between quantiles a little to either side: 10,000 resamples are drawn
        near = np.quantile(every, [share - 0.006, share + 0.006])
        assert near[0] - 1e-9 <= bound <= near[1] + 1e-9


@pytest.mark.parametrize(("level", "errors"), [(0.95, 1.96), (0.5, 0.6745)])
def test_bounds_of_many_values_are_the_normal_ones(level: float, errors: float) -> None:
    values = np.random.default_rng(0).exponential(size=400)
    error = values.std() / 400**0.5
    found = bootstrap_bounds(values, 10_000, level)
    assert found == pytest.approx(values.mean() + errors * error * np.array([-1, 1]), abs=0.15 * error)


def test_bounds_of_curves_are_those_of_each_step_whatever_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=(5, 3))
    together = bootstrap_bounds(values, BATCH + 1)
    assert together.shape == (2, 3)
    monkeypatch.setattr("oar_lightning.common.bootstrap.BATCH", 7)
    for step in range(3):
        assert together[:, step] == pytest.approx(bootstrap_bounds(values[:, step], BATCH + 1))


def test_one_value_and_equal_ones_are_their_own_bounds() -> None:
    assert bootstrap_bounds([0.25], 10).tolist() == [0.25, 0.25]
    assert bootstrap_bounds([1.0] * 5, 10).tolist() == [1, 1]


def test_bounds_are_the_same_at_every_call_and_draw_nothing_global() -> None:
    values = np.random.default_rng(2).normal(size=30)
    np.random.seed(0)
    state = np.random.get_state()[1].tolist()
    assert bootstrap_bounds(values, 100).tolist() == bootstrap_bounds(values, 100).tolist()
    assert np.random.get_state()[1].tolist() == state
