"""SPAE's advantage by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import InformationGain, Spae
from oar_lightning.credit.scorers.prefix_answers import Belief
from oar_lightning.credit.segments import FixedLength

LENT = tools(encode=lambda before, text: ([2], [5]))


def belief_of(phi: list[float]) -> Belief:
    """Sure beliefs with these potentials: with confidence 1 Phi = 2 Acc - 1."""
    accuracy = (torch.tensor(phi, dtype=torch.float64) + 1) / 2
    return Belief(accuracy.log(), torch.zeros(len(phi), dtype=torch.float64))


@pytest.mark.parametrize("advantage", [1.5, -0.7, 0.0])
@pytest.mark.parametrize("phi", [[-0.9, 0.1, 0.95, 0.8, 0.99], [0.95, 0.9, 0.2], [-0.5, 0.3]])
def test_a_solved_problem_teaches_less(phi: list[float], advantage: float) -> None:
    """A f + xi g: f = 1 up to the step that solves it, then 1 - Phi; g the change of Phi within [-1, 1]."""
    actual = Spae(FixedLength(2), bonus=0.5, solved=0.9).gains(belief_of(phi), advantage) + advantage
    for k in range(1, len(phi)):
        solved = any(value > 0.9 for value in phi[:k])
        f, g = (1 - phi[k] if solved else 1.0), float(np.clip(phi[k] - phi[k - 1], -1, 1))
        assert float(actual[k - 1]) == pytest.approx(advantage * f + 0.5 * g, abs=1e-12)


def test_the_gate_adds_it_to_the_advantage() -> None:
    rollouts = rollouts_of(
        [{"before": [3, 4], "reasoning": [8, 9, 10, 11, 12], "answer": [13]}, {"before": [5], "reasoning": [6], "answer": [7]}]
    )
    rollouts = dataclasses.replace(rollouts, advantages=torch.tensor([1.0, -1.0]))
    model, gain, scorer = gpt2(), InformationGain(FixedLength(2), "potential"), Spae(FixedLength(2), solved=1.0)
    for each in (gain, scorer):
        each.use(LENT)
    credit = assign_credit(model, rollouts, scorer, SignedGate("add", region="reasoning"))
    expected = rollouts.advantages[:, None] + 0.5 * gain(model, rollouts).clamp(-1, 1)
    expected = expected.masked_fill(~rollouts.response_mask, 0)
    torch.testing.assert_close(credit.advantages, expected.to(credit.advantages))


@pytest.mark.parametrize(("knobs", "message"), [({"bonus": -1.0}, r"scorer\.bonus"), ({"solved": 2.0}, r"scorer\.solved")])
def test_bad_knobs_are_named(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spae(FixedLength(2), **knobs)
