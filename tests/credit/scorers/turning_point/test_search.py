"""The search: against the place of the turn, and its weights against their formula."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.greedy_values import of_gaps

from oar_lightning.credit.scorers.turning_point.search import Search


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(1e-6, 5.0), min_size=1, max_size=40), st.integers(1, 5), st.data())
def test_a_search_to_the_end_finds_the_turn_whatever_the_weights(
    weights: list[float], points: int, data: st.DataObject
) -> None:
    """V turns once. With as many rounds as it takes the weights say only how many that are."""
    turn = data.draw(st.integers(0, len(weights) - 1))
    search = Search.over(of_gaps(*[1.0] * len(weights)), weights)
    while search.is_open:
        middles = search.middles(points)
        assert 1 <= len(middles) <= points
        assert sorted(set(middles)) == middles
        assert search.low < middles[0] <= middles[-1] < search.high
        search = search.narrowed(middles, [middle > turn for middle in middles])
    assert search.turning_point == search.deviations[turn]
    assert search.rounds <= len(weights) - 1


def test_the_last_of_several_turns_is_kept() -> None:
    """After it nothing comes to another outcome."""
    search = Search.over(of_gaps(*[1.0] * 8), [1.0] * 8)
    assert search.middles(3) == [2, 4, 6]
    kept = search.narrowed([2, 4, 6], [True, False, True])
    assert (kept.low, kept.high, kept.rounds) == (4, 6, 1)
    assert (search.narrowed([2, 4, 6], [True] * 3).low, search.narrowed([2, 4, 6], [True] * 3).high) == (0, 2)
    assert (search.narrowed([2, 4, 6], [False] * 3).low, search.narrowed([2, 4, 6], [False] * 3).high) == (6, 8)


def test_equal_weights_are_divided_by_number() -> None:
    assert Search.over(of_gaps(*[1.0] * 16), [1.0] * 16).middles(1) == [8]
    assert Search.over(of_gaps(*[1.0] * 12), [1.0] * 12).middles(2) == [4, 8]


def test_two_points_tell_in_one_round_whether_a_deviation_that_outweighs_all_is_the_one() -> None:
    search = Search.over(of_gaps(*[1.0] * 9), [0.01] * 4 + [1.0] + [0.01] * 4)
    assert search.middles(2) == [4, 5]
    assert not search.narrowed([4, 5], [False, True]).is_open


@given(st.lists(st.floats(1e-3, 5.0), min_size=1, max_size=20))
def test_the_likeliest_deviation_has_the_largest_weight(weights: list[float]) -> None:
    """Up to the rounding of sums of weights."""
    search = Search.over(of_gaps(*weights), weights).at_the_likeliest()
    assert not search.is_open
    assert search.turning_point.gap == pytest.approx(max(weights), abs=1e-12)
