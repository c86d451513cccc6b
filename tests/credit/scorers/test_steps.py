"""PURE's min-form against numpy, its limits, and around real step scorers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.credit.scorers import Entropy, InformationGain, MinForm, MonteCarlo
from oar_lightning.credit.scorers.steps import Steps, min_form
from oar_lightning.credit.segments import FixedLength
from oar_lightning.types import Continued

NUMBERS = torch.tensor([[-1, 0, 0, 1, 1, 1, 2], [0, 1, 2, 3, -1, -1, -1], [-1, -1, -1, -1, -1, -1, -1]])
P = [[0.3, -0.5, 0.1], [0.2, 0.2, -0.1, 0.9], []]


def steps_of(values: list[list[float]]) -> Steps:
    scores = torch.zeros(NUMBERS.shape, dtype=torch.float64)
    for row, p in enumerate(values):
        for k, value in enumerate(p):
            scores[row, NUMBERS[row] == k] = value
    return Steps(scores, NUMBERS)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.7])
def test_min_form_against_numpy(temperature: float) -> None:
    """Every token of a step carries w p, w the softmax of -p / T over the steps, whatever their lengths."""
    found = min_form(steps_of(P), temperature)
    for row, values in enumerate(P):
        p = np.array(values)
        w = np.exp(-p / temperature) / np.exp(-p / temperature).sum()
        for column, k in enumerate(NUMBERS[row].tolist()):
            assert float(found[row, column]) == pytest.approx(w[k] * p[k] if k >= 0 else 0.0, abs=1e-14)


def test_its_limits_are_the_worst_step_and_the_mean() -> None:
    cold, hot = min_form(steps_of(P), 1e-4), min_form(steps_of(P), 1e9)
    assert cold[0].tolist() == pytest.approx([0, 0, 0, -0.5, -0.5, -0.5, 0])
    assert cold[1].tolist() == pytest.approx([0, 0, -0.1, 0, 0, 0, 0])
    for row in (0, 1):
        of_steps = [float(hot[row][NUMBERS[row] == k][0]) for k in range(len(P[row]))]
        assert of_steps == pytest.approx([p / len(P[row]) for p in P[row]], abs=1e-9)


def test_around_step_scorers() -> None:
    """The inner scorer's steps, numbers of its tokens, tools and budgets; its own changes of tokens come last."""
    rollouts = rollouts_of(
        [{"before": [3, 4], "reasoning": [8, 9, 10, 11, 12], "answer": [13]}, {"before": [5], "reasoning": [6], "answer": [7]}],
        rewards=torch.tensor([1.0, 0.0]),
    )

    def continuations(model: Any, rollouts: Any, prefixes: Any, samples: int, seed: int, greedy: bool = False) -> Continued:
        return Continued(torch.tensor([[p.column % 4 / 4.0] * samples for p in prefixes]), len(prefixes), 0)

    lent = tools(continuations, encode=lambda before, text: ([2], [int(text or 1)]))
    model = gpt2()
    for inner, same in (
        (MonteCarlo(FixedLength(2), 1), MonteCarlo(FixedLength(2), 1)),
        (MonteCarlo(FixedLength(2), 1, absolute=True), MonteCarlo(FixedLength(2), 1)),
        (InformationGain(FixedLength(2)), InformationGain(FixedLength(2))),
    ):
        scorer = MinForm(inner, 0.5)
        scorer.use(lent)
        same.use(lent)
        found = min_form(same.steps(model, rollouts), 0.5)
        expected = found if inner.signed else found.abs()
        actual = scorer(model, rollouts)
        torch.testing.assert_close(actual, expected)
        assert actual.any()
        assert (scorer.signed, scorer.covers, scorer.budgets) == (inner.signed, inner.covers, inner.budgets)
        assert scorer.metrics == inner.metrics
    masked = MinForm(MonteCarlo(FixedLength(2), 1, forced_above=1e-9))
    masked.use(lent)
    assert not masked(model, rollouts).any()


def test_what_it_cannot_wrap_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.inner=Entropy has no steps"):
        MinForm(Entropy())
    with pytest.raises(ValueError, match=r"scorer\.temperature must be finite and > 0, got 0"):
        MinForm(MonteCarlo(FixedLength(2)), 0.0)
