"""The turning point: the search against all values, and the gaps against numpy."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import built_in_policy, make_stage
from support.toy import gpt2, padded, rollouts_of, tools

from oar_lightning.credit.scorers import Oracle, Shuffled, TurningPoint
from oar_lightning.credit.scorers.turning_point.deviations import Deviation, deviations
from oar_lightning.credit.scorers.turning_point.learnt import ENOUGH_TURNS, Learnt, TurnCounts, kind_of
from oar_lightning.credit.scorers.turning_point.siblings import mark_siblings
from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.types import Continued, Prefix, Rollouts

PROMPT, LENGTH = [3, 4, 5], 8


class Greedy:
    """Values of prefixes by their tokens: 0 where one of them is in `bad` for that column, and what was asked."""

    def __init__(self, bad: dict[int, int], of_prompt: float = 1.0) -> None:
        self.bad, self.of_prompt = bad, of_prompt
        self.asked: list[list[Prefix]] = []

    def value(self, rollouts: Rollouts, row: int, column: int) -> float:
        first = int(rollouts.response_mask[row].long().argmax())
        ids = rollouts.token_ids[row, first:column].tolist()
        spoilt = any(ids[i : i + 1] == [token] for i, token in self.bad.items())
        return 1 - self.of_prompt if spoilt else self.of_prompt

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        assert (samples, greedy) == (1, True)
        self.asked.append(list(prefixes))
        values = [[self.value(rollouts, *prefix)] for prefix in prefixes]
        return Continued(torch.tensor(values).view(-1, 1), len(values), 10 * len(values))


def drawn(greedy: Greedy, rows: int = 4, seed: int = 0, size: int = 4) -> Rollouts:
    """Completions of random tokens, with the rewards that `greedy` gives whole ones; groups with both kinds alone count."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(6, 30, (rows, LENGTH)).tolist()
    rollouts = rollouts_of([{"before": PROMPT, "reasoning": t[:-1], "answer": t[-1:]} for t in texts], group_size=size)
    end = rollouts.token_ids.shape[1]
    rewards = torch.tensor([greedy.value(rollouts, row, end) for row in range(rows)])
    mean = rewards.view(-1, size).mean(1).repeat_interleave(size)
    return dataclasses.replace(rollouts, rewards=rewards, advantages=rewards - mean)


def spoiling(seed: int, rows: int, *places: int) -> dict[int, int]:
    """The token at each place of every second row, which spoils what comes after it."""
    texts = np.random.default_rng(seed).integers(6, 30, (rows, LENGTH))
    return {place: int(texts[2 * i + 1, place]) for i, place in enumerate(places)}


def made(greedy: Greedy, **knobs: Any) -> TurningPoint:
    scorer = TurningPoint(**{"siblings": False, **knobs})
    scorer.use(tools(greedy))
    return scorer


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


def test_groups_without_a_signal_are_not_continued() -> None:
    greedy = Greedy({})
    rollouts = drawn(greedy)
    assert not made(greedy)(gpt2(), rollouts).any()
    assert not greedy.asked


@pytest.mark.parametrize("kept", [False, True])
def test_deviations_are_those_of_the_softmax(kept: bool) -> None:
    model, rollouts = gpt2(), padded(drawn(Greedy({})), 2, 1)
    if kept:
        with torch.no_grad(), evaluating(model):
            states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids)
        rollouts = dataclasses.replace(rollouts, prediction_states=states)
    found = deviations(model, rollouts)
    with torch.no_grad(), evaluating(model):
        for row in range(len(rollouts)):
            real = rollouts.attention_mask[row]
            logits = model(rollouts.token_ids[row, real][None]).logits[0].double().numpy()
            p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            ids, columns = rollouts.token_ids[row, real].numpy(), real.nonzero().flatten().numpy()
            expected = [
                (columns[i], p[i - 1].argmax(), np.log(p[i - 1].max() / p[i - 1, ids[i]]))
                for i in range(1, len(ids))
                if rollouts.response_mask[row, columns[i]] and p[i - 1].argmax() != ids[i]
            ]
            assert [(d.column, d.likely) for d in found[row]] == [(column, likely) for column, likely, _ in expected]
            assert [d.gap for d in found[row]] == pytest.approx([gap for _, _, gap in expected], abs=1e-6)


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
    assert scorer.totals.means()["credit/right_guess_frac"] == guessed_right / len(wrong)


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


def test_siblings_are_scored_at_the_nearest_state_that_chose_as_greedy_decoding_does() -> None:
    """States are given: of the tokens that are the most probable one at the turning point, the one with the nearest state."""
    model, greedy = gpt2(), Greedy({})
    rollouts = drawn(greedy)
    start = rollouts.token_ids.shape[1] - LENGTH
    states = torch.randn(*rollouts.token_ids.shape, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    likely = int(model.lm_head(states[1, start + 4]).argmax())
    ids = rollouts.token_ids.clone()
    ids[ids == likely] = (likely + 1) % 40
    ids[0, [start + 2, start + 6]] = likely
    ids[3, start + 1] = likely
    states[0, start + 6] = 3 * states[1, start + 4] + 0.01
    rollouts = dataclasses.replace(rollouts, token_ids=ids, prediction_states=states)
    scores = torch.zeros(ids.shape)
    assert mark_siblings(model, rollouts, {1: Deviation(start + 4, likely, 1.0)}, range(4), scores) == 0
    expected = torch.zeros(ids.shape)
    expected[0, start + 6] = expected[3, start + 1] = 1.0  # row 2 never took it
    assert torch.equal(scores, expected)


def test_siblings_by_kept_states_and_by_a_pass_are_the_same() -> None:
    greedy, model = Greedy(spoiling(0, 4, 4, 2)), gpt2()
    rollouts = padded(drawn(greedy), 1, 0)
    rollouts = dataclasses.replace(rollouts, rewards=drawn(greedy).rewards, advantages=drawn(greedy).advantages)
    with torch.no_grad(), evaluating(model):
        states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids)
    kept = dataclasses.replace(rollouts, prediction_states=states)
    by_pass, by_states = made(greedy, siblings=True), made(greedy, siblings=True)
    scores = by_pass(model, rollouts)
    assert torch.equal(scores, by_states(model, kept))
    passes = by_pass.metrics["forward_equivalents"] - by_states.metrics["forward_equivalents"]
    assert passes == pytest.approx(2), "one for the deviations, one for the siblings"
    alone = made(greedy)(model, rollouts)
    assert (scores >= alone).all()
    assert torch.equal(scores[rollouts.rewards == 0], alone[rollouts.rewards == 0])


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
