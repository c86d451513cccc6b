"""The other side of a decision: by states that are given, and whether they were kept or not."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.greedy_values import LENGTH, Greedy, drawn, made, spoiling
from support.toy import gpt2, padded

from oar_lightning.credit.scorers.turning_point.deviations import Deviation
from oar_lightning.credit.scorers.turning_point.siblings import mark_siblings
from oar_lightning.policy.language_model import evaluating, prediction_states


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
    target = states[1, start + 4]
    aside = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    aside -= target * (aside @ target) / (target @ target)
    states[0, start + 6] = 3 * target + 0.01
    states[0, start + 2] = 10 * target + 8 * target.norm() * aside / aside.norm()  # longer, at an angle of 39 degrees
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
