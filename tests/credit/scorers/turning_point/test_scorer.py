"""The turning point: the search against all values, guesses between searches, and what is kept."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import built_in_policy, make_stage
from support.greedy_values import LENGTH, Greedy, drawn, made, spoiling
from support.toy import gpt2, tools

from oar_lightning.credit.scorers import Oracle, Shuffled, TurningPoint
from oar_lightning.credit.scorers.turning_point.deviations import deviations
from oar_lightning.credit.scorers.turning_point.learnt import ENOUGH_TURNS, Checks, Learnt, TurnCounts, kind_of
from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.types import Rollouts


@pytest.mark.parametrize("points", [1, 2, 5])
@pytest.mark.parametrize("of_prompt", [1.0, 0.0])
def test_the_turning_point_is_that_of_all_values(of_prompt: float, points: int) -> None:
    """Of each completion with another reward than the greedy one, be that right or wrong."""
    greedy = Greedy(spoiling(1, 4, 4, 2), of_prompt)
    rollouts = drawn(greedy, seed=1)
    assert set(rollouts.rewards.tolist()) == {0.0, 1.0}
    found = deviations(gpt2(), rollouts)
    scores = made(greedy, rounds=LENGTH, points=points)(gpt2(), rollouts)
    start = rollouts.token_ids.shape[1] - LENGTH
    for row, reward in enumerate(rollouts.rewards.tolist()):
        values = [greedy.value(rollouts, row, start + i) for i in range(LENGTH + 1)]
        turns = [start + i for i, (a, b) in enumerate(itertools.pairwise(values)) if a != b]
        assert set(turns) <= {deviation.column for deviation in found[row]}, "what turns the outcome is a deviation"
        assert scores[row].nonzero().flatten().tolist() == turns
        assert bool(turns) == (reward != of_prompt)


def test_rounds_bound_the_continuations_of_a_completion_and_prompts_are_continued_once_a_group() -> None:
    greedy = Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    wrong = int((rollouts.rewards == 0).sum())
    for rounds in (0, 1, 2):
        greedy.asked.clear()
        scorer = made(greedy, rounds=rounds, points=1)
        scores = scorer(gpt2(), rollouts)
        assert [len(asked) for asked in greedy.asked] == [wrong * (rounds > 0) + 1, *[wrong] * (rounds - 1)][: max(1, rounds)]
        assert scores.sum(1).tolist() == (1 - rollouts.rewards).tolist()
        continued = sum(map(len, greedy.asked))
        assert scorer.totals.means()["credit/continuations"] == continued
        assert scorer.metrics["turned_frac"] == wrong / 4
        read = int(rollouts.attention_mask.sum())  # once, for the deviations
        assert scorer.metrics["forward_equivalents"] == (10 * continued + read) / read


def test_a_completion_without_tokens_does_not_tell_the_value_of_its_prompt() -> None:
    """As a recorded one may be; the prompt ends where another one begins."""
    greedy = Greedy(spoiling(1, 4, 4, 2))
    rollouts = drawn(greedy, seed=1)
    full = torch.arange(4) > 0
    masks = {name: getattr(rollouts, name) & full[:, None] for name in ("response_mask", "reasoning_mask", "answer_mask")}
    rollouts = dataclasses.replace(rollouts, **masks)
    made(greedy, rounds=1)(gpt2(), rollouts)
    assert greedy.asked[0][0] == (1, rollouts.token_ids.shape[1] - LENGTH)


def test_without_rounds_it_is_the_largest_gap() -> None:
    greedy = Greedy(spoiling(0, 4, 4, 2))
    rollouts, model = drawn(greedy), gpt2()
    scores = made(greedy, rounds=0)(model, rollouts)
    found = deviations(model, rollouts)
    for row in (rollouts.rewards == 0).nonzero().flatten().tolist():
        assert int(scores[row].argmax()) == max(found[row], key=lambda deviation: deviation.gap).column


def test_rewards_that_hardly_differ_are_no_other_outcome() -> None:
    greedy = Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    assert made(greedy)(gpt2(), dataclasses.replace(rollouts, rewards=0.6 + 0.4 * rollouts.rewards)).sum() == 0
    assert (
        made(greedy, least=0.3)(gpt2(), dataclasses.replace(rollouts, rewards=0.6 + 0.4 * rollouts.rewards)).sum()
        == (rollouts.rewards == 0).sum()
    )


def test_rewards_that_differ_by_just_the_limit_are_another_outcome() -> None:
    class Half(Greedy):
        def value(self, *place: Any) -> float:
            return 0.5 * super().value(*place)

    whole, half = Greedy(spoiling(0, 4, 4, 2)), Half(spoiling(0, 4, 4, 2))
    expected = made(whole, least=1.0)(gpt2(), drawn(whole))
    assert expected.any()
    rollouts = dataclasses.replace(drawn(whole), rewards=0.5 * drawn(whole).rewards)
    assert torch.equal(made(half, least=0.5)(gpt2(), rollouts), expected)


def test_a_value_halfway_is_not_yet_the_other_outcome() -> None:
    """V falls from 1 to 1/2 and from there to 0, which the completion comes to."""
    texts = np.random.default_rng(1).integers(6, 30, (4, LENGTH))

    class Falling(Greedy):
        def value(self, rollouts: Rollouts, row: int, column: int) -> float:
            first = int(rollouts.response_mask[row].long().argmax())
            ids = rollouts.token_ids[row, first:column].tolist()
            return 1.0 - 0.5 * sum(ids[i : i + 1] == [token] for i, token in self.bad.items())

    greedy, model = Falling({2: int(texts[1, 2]), 4: int(texts[1, 4])}), gpt2()
    rollouts = drawn(greedy, seed=1)
    assert rollouts.rewards.tolist() == [1, 0, 1, 1]
    start = rollouts.token_ids.shape[1] - LENGTH
    assert {start + 2, start + 4} <= {deviation.column for deviation in deviations(model, rollouts)[1]}
    scores = made(greedy, rounds=LENGTH, points=1)(model, rollouts)
    assert scores.nonzero().tolist() == [[1, start + 4]]


def test_groups_without_a_signal_are_not_continued() -> None:
    greedy = Greedy({})
    rollouts = drawn(greedy)
    assert not made(greedy)(gpt2(), rollouts).any()
    assert not greedy.asked


def test_what_it_learns_orders_the_search_and_changes_no_turning_point() -> None:
    """V turns once. Only `learn` makes later searches begin where earlier ones ended, so that they ask less."""
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    scorer = made(greedy, points=2)

    def asked() -> int:
        greedy.asked.clear()
        assert torch.equal(scorer(model, rollouts), expected)
        return sum(map(len, greedy.asked))

    expected = made(greedy, points=1)(model, rollouts)
    begun = asked()
    assert asked() == begun, "calls alone teach nothing"
    for _ in range(3):
        scorer.learn(model, rollouts)
        asked()
    assert asked() < begun


def test_a_saved_search_goes_on_as_it_would_have() -> None:
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    whole, begun = made(greedy), made(greedy)
    assert begun.state_dict() == {}
    for scorer in (whole, begun):
        scorer.learn(model, rollouts)
        scorer(model, rollouts)
    resumed = made(greedy)
    resumed.load_state_dict(begun.state_dict())
    for scorer in (whole, resumed):
        greedy.asked.clear()
        scorer.learn(model, rollouts)
        scorer(model, rollouts)
    asked, greedy.asked = greedy.asked[:], []
    assert whole.state_dict() == resumed.state_dict() != {}
    resumed.load_state_dict({})
    assert resumed.state_dict() == {}
    assert asked


def test_between_searches_nothing_is_continued_and_the_likeliest_deviation_is_taken() -> None:
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    wrong = (rollouts.rewards == 0).nonzero().flatten().tolist()
    found = deviations(model, rollouts)
    turned = Counter({found[row][-1].likely: ENOUGH_TURNS for row in wrong})
    tokens = TurnCounts(Counter(d.likely for row in wrong for d in found[row]), turned)
    wrong_kinds = [kind_of(-1.0, rollouts.advantages.tolist())]
    taught = Learnt(tokens, TurnCounts(Counter(32 * [*wrong_kinds, 2, 3]), Counter(32 * wrong_kinds)))
    scorer = made(greedy, search_every=2)
    scorer.load_state_dict(taught.state_dict())
    scores = scorer(model, dataclasses.replace(rollouts, step=3))
    assert not greedy.asked
    assert scorer.totals.means() == {"credit/continuations": 0, "time/continuations_s": 0}
    assert scores.sum(1).tolist() == (1 - rollouts.rewards).tolist()
    for row in wrong:
        assert int(scores[row].argmax()) == found[row][int(np.argmax(taught.weights(found[row])))].column
    assert scorer.state_dict() == taught.state_dict(), "what was not searched teaches nothing"
    searched = scorer(model, dataclasses.replace(rollouts, step=4))
    assert torch.equal(searched, made(greedy)(model, rollouts))
    assert scorer.state_dict() != taught.state_dict()
    guessed_right = sum(torch.equal(*both) for both in zip(scores[wrong], searched[wrong], strict=True))
    means = scorer.totals.means()
    assert means["credit/right_guess_frac"] == means["credit/guessed_turn_frac"] == guessed_right / len(wrong)


@pytest.mark.parametrize(("right", "guesses"), [(6, False), (7, True)])
def test_it_searches_all_the_same_where_searches_do_not_confirm_what_it_guesses(right: int, guesses: bool) -> None:
    """And guesses again once they do: what a search has checked counts at the next step."""
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = dataclasses.replace(drawn(greedy), step=3)
    many = Counter(dict.fromkeys(range(4), ENOUGH_TURNS))
    taught = Learnt(TurnCounts(many, many), TurnCounts(many, many), Checks(10, 10, right))
    for share, does_guess in ((0.7, guesses), (0.0, True)):
        scorer = made(greedy, search_every=2, guess_above=share)
        scorer.load_state_dict(taught.state_dict())
        greedy.asked.clear()
        scorer(model, rollouts)
        assert (not greedy.asked) is does_guess
        scorer.learn(model, rollouts)
        assert (Learnt.from_state_dict(scorer.state_dict()).checks == taught.checks) is does_guess


def test_who_looks_on_between_searches_sees_a_search() -> None:
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = dataclasses.replace(drawn(greedy), step=3)
    scorer = made(greedy, search_every=2)
    scorer.load_state_dict(Learnt(*2 * [TurnCounts(*2 * [Counter({1: ENOUGH_TURNS})])]).state_dict())
    assert not scorer(model, rollouts).any()
    with scorer.looked_at():
        assert torch.equal(scorer(model, rollouts), made(greedy)(model, rollouts))
    assert not scorer(model, rollouts).any()


def test_groups_whose_rewards_hardly_differ_are_not_guessed() -> None:
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = dataclasses.replace(drawn(greedy), step=3)
    kinds = Counter(dict.fromkeys(range(4), ENOUGH_TURNS))
    scorer = made(greedy, search_every=2)
    scorer.load_state_dict(Learnt(TurnCounts(kinds, kinds), TurnCounts(kinds, kinds)).state_dict())
    assert scorer(model, rollouts).any()
    assert not scorer(model, dataclasses.replace(rollouts, rewards=0.6 + 0.4 * rollouts.rewards)).any()


def test_a_state_that_knows_no_kinds_yet_searches() -> None:
    """As checkpoints from before there was `search_every`."""
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    scorer = made(greedy, search_every=2)
    scorer.load_state_dict({"deviated": {1: 99}, "turned": {1: 99}})
    scorer(model, dataclasses.replace(drawn(greedy), step=3))
    assert greedy.asked


def test_without_rounds_nothing_is_learnt_that_could_be_guessed_from() -> None:
    with pytest.raises(ValueError, match=r"scorer.search_every=8 needs searches .* set scorer.rounds >= 1, got 0"):
        TurningPoint(rounds=0, search_every=8)


def test_it_searches_as_long_as_too_few_turns_are_known() -> None:
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = dataclasses.replace(drawn(greedy), step=3)
    scorer = made(greedy, search_every=2)
    few, many = Counter({1: ENOUGH_TURNS - 1}), Counter({1: ENOUGH_TURNS})
    scorer.load_state_dict(Learnt(TurnCounts(few, few), TurnCounts(many, many)).state_dict())
    assert torch.equal(scorer(model, rollouts), made(greedy)(model, rollouts))
    assert greedy.asked


def test_on_the_built_in_policy_it_finds_the_first_error_that_nobody_told_it() -> None:
    """The truth is the generator's knowledge of the sums. One completion in five may be put elsewhere."""
    policy = built_in_policy()
    stage, sampling = make_stage(policy), SamplingConfig(max_new_tokens=80)
    problems = [ChainProblems(ChainTask())[i] for i in range(6)]
    rollouts = stage(policy.model, problems, 8, sampling, list(range(6)))
    rollouts = dataclasses.replace(rollouts, advantages=rollouts.rewards - 0.5)
    scorer = TurningPoint(rounds=3)
    scorer.use(RolloutTools(stage, sampling))
    found = scorer(policy.model, rollouts) > 0
    truth, decisions = (Oracle(ChainCredit(which))(policy.model, rollouts) > 0 for which in ("first_error", "results"))
    wrong = (rollouts.rewards == 0) & truth.any(1)
    assert int(wrong.sum()) >= 15
    assert (found & truth)[wrong].any(1).float().mean() >= 0.8
    assert (found[wrong].sum(1) <= 1).all()
    praised = found & (rollouts.rewards > 0)[:, None]
    assert int(praised.sum()) >= 15
    assert (praised & decisions).sum() >= 0.8 * praised.sum()


def test_who_looks_on_teaches_nothing_and_the_next_run_begins_with_nothing_learnt() -> None:
    """A heat-map of an evaluation is scored by the run's own scorer."""
    model, greedy = gpt2(), Greedy(spoiling(0, 4, 4, 2))
    rollouts = drawn(greedy)
    scorer = made(greedy)
    for outer in (scorer, Shuffled(scorer)):
        with outer.looked_at():
            outer(model, rollouts)
        assert outer.state_dict() == {}
    scorer(model, rollouts)
    learnt = scorer.state_dict()
    with scorer.looked_at():
        scorer(model, rollouts)
    assert scorer.state_dict() == learnt != {}
    scorer.use(tools(greedy))
    assert scorer.state_dict() == {}


@pytest.mark.parametrize("siblings", [False, True])
def test_whether_scores_depend_on_the_group(siblings: bool) -> None:
    assert TurningPoint(siblings=siblings).reads_groups == siblings


def test_a_number_of_points_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.points .* 0"):
        TurningPoint(points=0)


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.rounds .* -1"):
        TurningPoint(rounds=-1)
