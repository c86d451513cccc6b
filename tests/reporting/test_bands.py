"""Bands of curves: means, ranges, runs that stop early or miss steps."""

from __future__ import annotations

import numpy as np
import pytest

from oar_lightning.reporting.bands import band, ends_of, final_value, smoothed
from oar_lightning.reporting.runs import Curve, RunRecord
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM


def curve(points: dict[int, float]) -> Curve:
    return Curve(np.array([*points], dtype=float), np.array([*points.values()], dtype=float))


def test_a_band_is_mean_and_range_of_two_runs_at_each_step() -> None:
    found = band([curve({0: 1, 10: 3, 20: 5}), curve({0: 3, 10: 3, 20: 1})])
    assert found is not None
    assert found.steps.tolist() == [0, 10, 20]
    assert found.mean.tolist() == [2, 3, 3]
    assert (found.low.tolist(), found.high.tolist(), found.n) == ([1, 3, 1], [3, 3, 5], 2)


def test_from_ten_runs_on_a_band_is_the_bootstrap_interval_of_the_mean() -> None:
    found = band([curve({0: value, 10: 5.0}) for value in range(BOOTSTRAP_FROM)])
    assert found is not None
    spread = 1.96 * np.std(range(BOOTSTRAP_FROM)) / BOOTSTRAP_FROM**0.5
    assert [found.low[0], found.high[0]] == pytest.approx([4.5 - spread, 4.5 + spread], abs=0.15)
    assert found.low[1] == found.high[1] == 5


def test_missing_steps_are_read_between_their_neighbours_and_only_common_ranges_count() -> None:
    found = band([curve({1: 1, 3: 3, 4: 4, 9: 9}), curve({2: 20, 4: 40})])
    assert found is not None
    assert found.steps.tolist() == [2, 3, 4]
    assert found.mean.tolist() == [11, (3 + 30) / 2, 22]


def test_a_single_run_has_no_width_and_runs_without_common_steps_no_band() -> None:
    alone = band([curve({1: 1, 2: 5})])
    assert alone is not None
    assert alone.low.tolist() == alone.high.tolist() == alone.mean.tolist() == [1, 5]
    assert band([]) is None
    assert band([curve({1: 1, 2: 2}), curve({3: 1, 4: 2})]) is None


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    found = band([curve({step: 2 * step for step in range(5000)})])
    assert found is not None
    assert len(found.steps) == 400
    assert (found.steps[0], found.steps[-1]) == (0, 4999)
    assert found.mean == pytest.approx(2 * found.steps)


def test_smoothing_is_the_mean_of_the_neighbours() -> None:
    values = np.random.default_rng(0).normal(size=100)
    found = smoothed(Curve(np.arange(100.0), values)).values
    assert found[50] == pytest.approx(values[48:53].mean())
    assert found[0] == pytest.approx(values[:3].mean())
    assert found[99] == pytest.approx(values[97:].mean())
    few = Curve(np.arange(5.0), values[:5])
    assert smoothed(few).values == pytest.approx(few.values)


def test_the_end_is_the_last_tenth() -> None:
    assert final_value(curve({i: i for i in range(40)})) == np.mean([36, 37, 38, 39])
    assert final_value(curve({0: 1, 5: 7})) == 7
    assert final_value(curve({i: i for i in range(16)})) == 14.5, "a tenth of 16 is nearer to two points than to one"


def test_the_ends_of_a_run_are_means_of_the_last_tenth_of_what_it_recorded() -> None:
    run = RunRecord("id", "name", "complete", "", 0, 1.0, {}, {}, {})
    steps = np.arange(1.0, 21.0)
    found = ends_of(run, {"grad_norm": {"id": Curve(steps, steps / 10)}, "reward": {"id": Curve(steps, steps)}})
    assert found == {"grad_norm": pytest.approx(1.95)}
