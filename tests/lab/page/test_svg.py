"""Axes hold all values, and their ticks are round."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar_lightning.lab.page.svg import STEPS, Axis

NUMBERS = st.floats(-1e6, 1e6).filter(lambda v: v == 0 or abs(v) > 1e-6)


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_all_values_are_on_the_axis_in_their_order(values: list[float]) -> None:
    axis = Axis.around(values, 10, 110)
    places = [float(axis(v)) for v in sorted(values)]
    assert places == sorted(places)
    assert 10 <= places[0] <= places[-1] <= 110
    ticks = axis.ticks()
    assert len(ticks) <= 6
    steps = {round((b - a) / 10 ** math.floor(math.log10(b - a) + 1e-9), 6) for a, b in itertools.pairwise(ticks)}
    assert steps <= {float(s) for s in STEPS}


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, math.nan]])
def test_without_finite_values_there_is_an_axis_still(values: list[float]) -> None:
    assert Axis.around(values, 0, 1).ticks()


def test_it_points_up_where_its_start_is_below() -> None:
    axis = Axis.around([0.0, 1.0], 100, 0)
    assert float(axis(1.0)) < float(axis(0.0))
