"""HICRA's phrases in a text, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers.forward_free import Hicra


def given(text, spans, advantage):
    rollouts = rollouts_of([{"before": [1], "reasoning": list(range(3, 3 + len(spans)))}], completions=(text,))
    return dataclasses.replace(rollouts, advantages=torch.tensor([advantage]), token_spans=(tuple(spans),))


TEXT = "First we, thenceforth then add. But wait"
SPANS = [(0, 3), (3, 5), (5, 8), (8, 22), (22, 26), (26, 32), (32, 35), (35, 40)]
#        "Fir"   "st"    " we"   ", thenceforth " "then" " add. " "But"  " wait"


@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_tokens_of_whole_phrases_gain_a_share(advantage):
    rollouts = given(TEXT, SPANS, advantage)
    scores = Hicra(0.2, ["first", "then", "but wait"])(None, rollouts)
    planning = [True, True, False, False, True, False, True, True]
    found = scores[0, rollouts.response_mask[0]]
    assert found.tolist() == pytest.approx([0.2 * abs(advantage) * p for p in planning])
    credit = SignedGate("add")(scores, rollouts).advantages[0, rollouts.response_mask[0]]
    assert credit.tolist() == pytest.approx([advantage + 0.2 * abs(advantage) * p for p in planning])


def test_texts_of_patterns_are_texts():
    rollouts = given("a.b", [(0, 3)], 1.0)
    assert not Hicra(0.2, ["a+b"])(None, rollouts).any()


@pytest.mark.parametrize(
    ("text", "phrases", "found"),
    [
        ("wait, it is so: 3", ["wait,", "so:"], ["wait,", "so:"]),
        ("first of all", ["first", "first of all"], ["first of all"]),
        ("await, sofa:", ["wait,", "so"], []),
    ],
)
def test_phrases_may_end_in_punctuation_and_the_longest_one_counts(text, phrases, found):
    scorer = Hicra(0.2, phrases)
    rollouts = given(text, [(i, i + 1) for i in range(len(text))], 1.0)
    inside = scorer(None, rollouts)[0, rollouts.response_mask[0]] > 0
    spans = [range(text.index(phrase), text.index(phrase) + len(phrase)) for phrase in found]
    assert inside.nonzero().flatten().tolist() == [place for span in spans for place in span]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"alpha": 1.5}, r"scorer\.alpha .* \[0, 1\], got 1.5"), ({"phrases": []}, r"scorer\.phrases .* got \[\]")],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        Hicra(**knobs)


def test_completions_without_texts_are_refused():
    rollouts = dataclasses.replace(given("first", [(0, 5)], 1.0), token_spans=())
    with pytest.raises(ValueError, match="scorer=hicra reads the text of completions"):
        Hicra()(None, rollouts)
