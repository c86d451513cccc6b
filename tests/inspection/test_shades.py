"""Scales of the heat-map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar_lightning.inspection.shades import ABOVE, BELOW, NOT_FINITE, SHADES, make_scale

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


def shades(values: list[float], center: float = 0.0, even: bool = True) -> str:
    scale = make_scale(values, center, even)
    return "".join(map(scale.shade, values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([0.0, 0.0], "ff"),
        ([0.5, 0.5], "ff"),
        ([-3.0], "f"),
        ([float("nan")], NOT_FINITE),
        ([0.0, float("inf"), 1.0], "f?k"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "fghijk"),
        ([-5.0, -1.0, 0.0], "aef"),
        ([-1.0, 0.0, 5.0], "efk"),
        ([1.0, 1.0, 40.0], "kk>"),
        ([-1.0, 1.0, -40.0, 1.0], "ak<k"),
        ([0.0] * 99 + [1.0], "f" * 99 + "k"),
    ],
)
def test_shades(values: list[float], expected: str) -> None:
    assert shades(values) == expected


def test_uneven_sides_each_use_all_their_shades() -> None:
    assert shades([0.0, 1.0, 3.0], center=1.0, even=False) == "afk"
    assert shades([0.0, 1.0, 3.0], center=1.0) == "dfk"  # -1 is two and a half of five steps, which rounds to the even


@given(st.lists(FINITE, max_size=40), st.booleans())
def test_shades_rise_with_the_values(values: list[float], even: bool) -> None:
    scale, order = make_scale(values, even=even), BELOW + SHADES + ABOVE
    marks = [order.index(scale.shade(value)) for value in sorted(values)]
    assert marks == sorted(marks)
    assert sum(mark in (0, len(order) - 1) for mark in marks) <= max(1, len(values) // 2)


@given(st.lists(FINITE, min_size=2, max_size=40))
def test_each_level_has_its_shade(values: list[float]) -> None:
    scale = make_scale(values)
    levels = scale.levels()
    assert [value for _, value in levels] == sorted(value for _, value in levels)
    if scale.high - scale.low > 1e-30:
        assert [scale.shade(min(max(value, scale.low), scale.high)) for _, value in levels] == [mark for mark, _ in levels]
