"""Values of shared states against a definition written out, and what follows from it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.toy import padded, rollouts_of

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import BilevelGate, SignedGate
from oar_lightning.credit.scorers import AnchorStates, Uniform
from oar_lightning.credit.scorers.anchor_states import visited_states
from oar_lightning.data.actions import TextPattern
from oar_lightning.types import MathProblem, Rollouts

TEXTS = ("so 1+2=3.", "1 + 2 is =3", "1+2=4 no", "ah 1-2=3", "no number", "1+2=4", "7", "7 7")
"""Two groups of four. A character is a token, whose id is its code."""
REWARDS = (1.0, 0.0, 0.25, 0.0, 1.0, 0.5, 0.0, 1.0)
DIGITS = TextPattern(r"\d|[-+=]")


def given(texts: tuple[str, ...] = TEXTS, rewards: tuple[float, ...] = REWARDS) -> Rollouts:
    sequences = [{"before": [3, 4], "reasoning": [ord(c) for c in text[:-1]], "answer": [ord(text[-1])]} for text in texts]
    centred = np.asarray(rewards).reshape(-1, 4)
    advantages = torch.tensor(centred - centred.mean(1, keepdims=True)).flatten()
    return rollouts_of(
        sequences,
        group_size=4,
        rewards=torch.tensor(rewards),
        advantages=advantages,
        problems=tuple(MathProblem(str(i // 4), "2") for i in range(len(texts))),
        completions=texts,
        token_spans=tuple(tuple((i, i + 1) for i in range(len(text))) for text in texts),
    )


def of_tokens(scores: torch.Tensor, rollouts: Rollouts) -> list[list[float]]:
    return [row[mask].tolist() for row, mask in zip(scores, rollouts.response_mask, strict=True)]


def written_out(texts: tuple[str, ...], rewards: tuple[float, ...], form: str) -> list[list[float]]:
    """The definition, without a tree: who has begun with the same anchors?"""
    anchors = ["".join(c for c in text if c in "0123456789-+=") for text in texts]
    out = []
    for row, text in enumerate(texts):
        group = range(row - row % 4, row - row % 4 + 4)

        def value(state: str, group: range = group) -> float:
            return float(np.mean([rewards[i] for i in group if anchors[i].startswith(state)]))

        scores, state = [], ""
        for c in text:
            before = state
            state += c if c in "0123456789-+=" else ""
            end = value(state) if form == "difference" else rewards[row]
            scores.append(end - value(before) if state != before else 0.0)
        out.append(scores)
    return out


@pytest.mark.parametrize("form", ["difference", "return"])
def test_scores_against_the_definition(form: str) -> None:
    rollouts = given()
    scores = AnchorStates(DIGITS, form)(None, rollouts)  # type: ignore[arg-type]
    for found, expected in zip(of_tokens(scores, rollouts), written_out(TEXTS, REWARDS, form), strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert not scores[~rollouts.response_mask].any()


def test_a_case_by_hand() -> None:
    """Of 1 + 2 = 3, 3, 4 and 1 - 2 the rewards are 1, 0, 1/4 and 0: V is 5/16 at first, 5/12 after the plus, 1/2 after 3."""
    scores = of_tokens(AnchorStates(DIGITS)(None, given()), given())
    plus, three = 5 / 12 - 5 / 16, 1 / 2 - 5 / 12
    assert scores[0] == pytest.approx([0, 0, 0, 0, plus, 0, 0, three, 0], abs=1e-6)
    assert scores[2] == pytest.approx([0, plus, 0, 0, 1 / 4 - 5 / 12, 0, 0, 0], abs=1e-6)
    assert scores[3] == pytest.approx([0, 0, 0, 0, -5 / 16, 0, 0, 0], abs=1e-6), "after the minus it is alone"
    scorer = AnchorStates(DIGITS)
    scorer(None, given())
    assert scorer.metrics["shared_frac"] == pytest.approx((5 + 5 + 5 + 2 + 0 + 1 + 1 + 2) / (5 * 4 + 0 + 5 + 1 + 2))


def test_scores_sum_to_the_last_states_value_minus_the_groups() -> None:
    rollouts = given()
    sums = AnchorStates(DIGITS)(None, rollouts).sum(1)
    last = (0.5, 0.5, 0.25, 0.0, 0.625, 0.5, 0.5, 1.0)  # two pairs of completions end in one state, a third one begins another
    means = np.repeat(np.asarray(REWARDS).reshape(2, 4).mean(1), 4)
    assert sums.tolist() == pytest.approx((np.asarray(last) - means).tolist(), abs=1e-6)


def test_both_forms_have_one_sum_over_all_who_took_the_same_step() -> None:
    """So that their gradients agree where what stands between the anchors is the same, too."""
    texts, rewards = ("1+2=3", "1+2=3", "1+2=4", "1-2=3"), (1.0, 0.0, 0.25, 0.0)
    rollouts = given(texts, rewards)
    forms = [of_tokens(AnchorStates(DIGITS, form)(None, rollouts), rollouts) for form in ("difference", "return")]  # type: ignore[arg-type]
    steps = {text[: i + 1] for text in texts for i in range(len(text))}
    for step in steps:
        who = [row for row, text in enumerate(texts) if text.startswith(step)]
        first, second = (sum(form[row][len(step) - 1] for row in who) for form in forms)
        assert first == pytest.approx(second, abs=1e-6)


def test_what_stands_between_and_around_changes_nothing() -> None:
    plain = AnchorStates(DIGITS)(None, given())
    filled = given(tuple(text.replace("1", "well 1 ") for text in TEXTS))
    scores = AnchorStates(DIGITS)(None, filled)
    assert [[s for s in row if s] for row in of_tokens(scores, filled)] == [
        [s for s in row if s] for row in of_tokens(plain, given())
    ]
    wide = padded(given(), 2, 3)
    assert torch.equal(AnchorStates(DIGITS)(None, wide)[:, 2:-3], plain)
    order = [1, 0, 3, 2, 7, 6, 5, 4]
    turned = given(tuple(TEXTS[i] for i in order), tuple(REWARDS[i] for i in order))
    assert torch.equal(AnchorStates(DIGITS)(None, turned)[:, :], plain[order])


def split(text: str) -> list[str]:
    """As tokenizers of large models do: a blank belongs to what follows it."""
    return re.findall(r" ?\w| ?[^\w ]", text)


def test_spacing_makes_no_other_state_where_it_makes_other_tokens() -> None:
    """`+` and ` +` are two tokens, and the same step."""
    texts = ("1+2=3", "1 + 2 = 3", "1+ 2= 4", "1 +2 =4")
    pieces, rewards = [split(text) for text in texts], (1.0, 1.0, 0.0, 0.0)
    ids = {piece: 5 + number for number, piece in enumerate(sorted({p for own in pieces for p in own}))}
    ends = [[0, *itertools.accumulate(map(len, own))] for own in pieces]
    rollouts = rollouts_of(
        [{"before": [3], "reasoning": [ids[p] for p in own[:-1]], "answer": [ids[own[-1]]]} for own in pieces],
        group_size=4,
        rewards=torch.tensor(rewards),
        problems=(MathProblem("1", "3"),) * 4,
        completions=texts,
        token_spans=tuple(tuple(pairwise(own)) for own in ends),
    )
    scorer = AnchorStates(DIGITS)
    assert of_tokens(scorer(None, rollouts), rollouts) == [[0, 0, 0, 0, end] for end in (0.5, 0.5, -0.5, -0.5)]
    assert scorer.metrics["shared_frac"] == 1


def test_two_numbers_are_not_one() -> None:
    """12 and 1, 2 have the same digits."""
    rollouts = given(("a 12", "a 1 2", "b 12", "b 12"), (0.0, 1.0, 0.0, 0.0))
    scores = of_tokens(AnchorStates(TextPattern(r"\d+"))(None, rollouts), rollouts)
    assert [row[-1] for row in scores] == [-0.25, 0.75, -0.25, -0.25]


def test_importance_is_what_leads_to_the_own_outcome() -> None:
    rollouts = given()
    signed, importance = (AnchorStates(DIGITS, absolute=flag)(None, rollouts) for flag in (False, True))
    expected = (signed * rollouts.advantages.sign()[:, None]).clamp(min=0)  # type: ignore[union-attr]
    assert torch.equal(importance, expected.to(importance))
    assert AnchorStates(DIGITS).signed
    assert not AnchorStates(DIGITS, absolute=True).signed


def test_no_anchors_is_grpo() -> None:
    rollouts = given()
    grpo = assign_credit(None, rollouts, Uniform(), SignedGate("add")).advantages
    assert torch.equal(assign_credit(None, rollouts, AnchorStates(TextPattern("x")), SignedGate("add")).advantages, grpo)
    importance, gate = AnchorStates(TextPattern("x"), absolute=True), BilevelGate(threshold="absolute", tau=0.25)
    torch.testing.assert_close(assign_credit(None, rollouts, importance, gate).advantages, grpo)


def test_the_wrong_token_of_a_wrong_completion_gets_the_blame() -> None:
    """Three solve it, one writes a wrong total and then goes on as it must."""
    texts = ("1+2=3.", "a1+2=3.", "1+2=3 b.", "1+2=4 so 4")
    rollouts = given(texts, (1.0, 1.0, 1.0, 0.0))
    gate = BilevelGate(threshold="absolute", tau=0.25)
    weights = of_tokens(assign_credit(None, rollouts, AnchorStates(DIGITS, absolute=True), gate).advantages, rollouts)
    wrong = weights[3][:-1]  # the answer keeps the group's advantage
    assert min(wrong) == wrong[4], "4, where it went wrong"
    assert all(b == pytest.approx(a) for a, b in pairwise(wrong[:4] + wrong[5:]))
    assert wrong[4] / wrong[0] == pytest.approx(30, rel=0.05)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.anchors reads the text of completions"):
        AnchorStates(DIGITS)(None, dataclasses.replace(given(), token_spans=()))
    with pytest.raises(ValueError, match=r"scorer\.absolute=true is .* set scorer\.form=difference"):
        AnchorStates(DIGITS, "return", absolute=True)
    with pytest.raises(ValueError, match=r"scorer\.form must be"):
        AnchorStates(DIGITS, "other")  # type: ignore[arg-type]


def test_a_completion_whose_reward_is_not_known_is_left_out() -> None:
    nan = float("nan")
    visits = visited_states([["1", "2"], ["1", "3"], ["1", "2"], ["4"]], [1.0, 0.0, nan, 1.0])
    assert [state.value for state in visits[0]] == [2 / 3, 0.5, 1.0]
    assert visits[0][0].visitors == 3
