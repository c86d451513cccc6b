"""What searches teach, against its formulas."""

from __future__ import annotations

from collections import Counter

import pytest
from support.greedy_values import of_gaps

from oar_lightning.credit.scorers.turning_point.learnt import Checks, Learnt, TurnCounts, kind_of
from oar_lightning.credit.scorers.turning_point.search import Search


def test_weights_of_nothing_known_are_gaps_and_the_mean_gap() -> None:
    assert Learnt().weights(of_gaps(1.0, 3.0)) == [1 + 2, 3 + 2]
    assert Learnt().weights(of_gaps(0.0, 0.0)) == [1, 1], "ties, which a search must divide, too"


def test_weights_are_the_shares_of_tokens_that_turned() -> None:
    """(turned + 2 m) / (deviated + 2) with the mean share m, times gap and mean gap."""
    learnt = Learnt(TurnCounts(Counter({0: 10, 1: 30}), Counter({0: 8, 1: 2})))
    expected = [(8 + 2 * 0.25) / 12 * 4, (2 + 2 * 0.25) / 32 * 4, 0.25 * 4]
    assert learnt.weights(of_gaps(2.0, 2.0, 2.0)) == pytest.approx(expected)


def test_searches_that_came_to_an_end_are_counted_and_open_ones_are_not() -> None:
    ended = Search.over(of_gaps(1.0, 2.0), [1.0, 1.0]).narrowed([1], [False])
    still_open = Search.over(of_gaps(1.0, 2.0, 3.0), [1.0] * 3)
    learnt = Learnt.of({4: ended, 7: still_open}, [{4: 0, 5: 0}, {7: 3, 8: 3}], {})
    tokens, kinds = TurnCounts(Counter({0: 1, 1: 1}), Counter({1: 1})), TurnCounts(Counter({0: 2, 3: 2}), Counter({0: 1, 3: 1}))
    assert learnt == Learnt(tokens, kinds, Checks(guessed=0, turned=2, right=0))
    twice = learnt + learnt
    assert (twice.tokens.searched, twice.kinds.turned) == (Counter({0: 2, 1: 2}), Counter({0: 2, 3: 2}))
    assert Learnt.from_state_dict(learnt.state_dict()) == learnt
    assert Learnt.from_state_dict(Learnt().state_dict()) == Learnt()


def test_a_checkpoint_from_before_kinds_were_counted_is_read() -> None:
    assert Learnt.from_state_dict({"deviated": {1: 3}, "turned": {1: 2}}).tokens == TurnCounts(Counter({1: 3}), Counter({1: 2}))


def test_four_kinds_of_completions() -> None:
    """Its own sign, and whether at least half of its group's are positive."""
    assert [kind_of(a, group) for group in ([-1, -1, 1, 1], [-1, -1, -1, 3]) for a in (-1.0, 1.0)] == [1, 3, 0, 2]


@pytest.mark.parametrize(("searched", "turned", "expected"), [(8, 4, True), (8, 3, False), (7, 7, False), (0, 0, False)])
def test_a_turn_is_expected_of_kinds_of_which_enough_have_turned(searched: int, turned: int, expected: bool) -> None:
    learnt = Learnt(kinds=TurnCounts(Counter({2: searched}), Counter({2: turned})))
    assert learnt.expected({5: 2, 6: 0, 7: 2}) == ([5, 7] if expected else [])
    assert learnt.expected({6: 0}) == []
    assert learnt.expected({}) == []


def test_one_side_of_a_group_has_turned() -> None:
    """The likelier one, where both kinds have mostly turned: those of both sides cannot differ from the greedy completion."""
    learnt = Learnt(kinds=TurnCounts(Counter({0: 20, 2: 20}), Counter({0: 12, 2: 15})))
    assert learnt.expected({3: 0, 4: 2, 5: 0}) == [4]


@pytest.mark.parametrize(("turns", "completions", "enough"), [(64, 64, True), (63, 64, False), (64, 63, False)])
def test_so_many_turns_and_completions_are_enough(turns: int, completions: int, enough: bool) -> None:
    tokens = TurnCounts(Counter({1: 999}), Counter({1: 3, 2: turns - 3}))
    assert Learnt(tokens, TurnCounts(Counter({0: 9, 3: completions - 9}))).is_enough is enough


def test_a_guess_is_right_where_the_search_ends_at_its_turning_point() -> None:
    """Rows 1 and 2 turned, at their first and second deviation; guessed were the second ones of rows 2, 1 and 5, which has not
    turned. Row 9 turned, too, in a group that is not guessed."""
    deviations = of_gaps(1.0, 2.0)
    first, second = (Search.over(deviations, weights) for weights in ([1.0, 0.1], [0.1, 1.0]))
    ended = {1: first.at_the_likeliest(), 2: second.at_the_likeliest(), 9: first.at_the_likeliest()}
    guesses = dict.fromkeys([1, 2, 5], second.at_the_likeliest())
    assert Checks.of(guesses, ended, {1: 0, 2: 0, 5: 0, 6: 0}) == Checks(guessed=3, turned=2, right=1)


def test_of_two_batches_the_later_one_counts_twice_and_one_without_guesses_and_turns_does_not() -> None:
    early, late = Checks(8, 6, 4), Checks(1, 2, 1)
    assert early.then(late) == Checks(8 / 2 + 1, 6 / 2 + 2, 4 / 2 + 1)
    assert early.then(Checks()) == early
    taught = Learnt(checks=early)
    assert taught.then(Learnt(TurnCounts(Counter({1: 1})), checks=late)) == Learnt(
        TurnCounts(Counter({1: 1})), checks=early.then(late)
    )
    assert (taught + Learnt(checks=late)).checks == Checks(9, 8, 5), "of two ranks"


@pytest.mark.parametrize(
    ("checks", "share", "confirmed"),
    [
        (Checks(10, 10, 7), 0.7, True),
        (Checks(10, 5, 5), 0.7, False),  # half of the guesses are wrong
        (Checks(5, 10, 5), 0.7, False),  # half of the turns are not guessed
        (Checks(0, 4, 0), 0.7, False),
        (Checks(10, 10, 0), 0.0, True),
        (Checks(), 1.0, True),
    ],
)
def test_guesses_are_confirmed_by_how_many_are_right_and_how_many_turns_they_find(
    checks: Checks, share: float, confirmed: bool
) -> None:
    assert checks.confirm(share) is confirmed
