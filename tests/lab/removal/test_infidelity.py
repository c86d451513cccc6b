"""Infidelity: nothing is left where scores add up to effects, and all where they tell nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from support.removal import SCORABLE, SEQUENCES

from oar_lightning.lab.removal.curves import RemovalConfig
from oar_lightning.lab.removal.infidelity import infidelity, random_sets, unexplained

WEIGHTS = torch.tensor(np.random.default_rng(0).normal(size=(4, 7)))


def additive(sets, fill):
    return 1.5 - (WEIGHTS[sets.row] * sets.removed).sum(1)


def placed(rollouts, values):
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    for row, sequence in enumerate(SEQUENCES):
        scores[row, rollouts.reasoning_mask[row]] = values[row, : len(sequence["reasoning"])]
    return scores


def test_scores_that_add_up_to_effects_leave_nothing(rollouts) -> None:
    scores = {
        "exact": placed(rollouts, 0.01 * WEIGHTS),
        "none": placed(rollouts, 0 * WEIGHTS),
        "half": placed(rollouts, WEIGHTS.clamp(min=0)),
    }
    (measure,) = infidelity(additive, rollouts, scores, RemovalConfig(("pad",)))
    assert measure.key == "direct.pad.infidelity"
    assert measure.better == "low"
    for row in SCORABLE:
        assert measure.values["exact"][row] == pytest.approx(0.0, abs=1e-12)
        assert measure.values["none"][row] == 1.0
    assert any(0.05 < measure.values["half"][row] < 1 for row in SCORABLE)
    assert all(math.isnan(values[2]) for values in measure.values.values())


def test_a_transcription() -> None:
    rng = np.random.default_rng(4)
    a, e = rng.normal(size=(3, 20)), rng.normal(size=(3, 20))
    found = unexplained(torch.tensor(a), torch.tensor(e))
    for row in range(3):
        residual = scipy.optimize.nnls(a[row][:, None], e[row])[1] ** 2  # scales are not negative
        assert float(found[row]) == pytest.approx(residual / (e[row] ** 2).sum())
    assert unexplained(torch.tensor(e), torch.tensor(-e)).tolist() == [1.0] * 3, "scores of the opposite"
    assert unexplained(torch.zeros(1, 2), torch.zeros(1, 2)).isnan().all()


def test_sets_hold_the_fractions_in_turn(rollouts) -> None:
    sets = random_sets(rollouts, 1, 9, RemovalConfig(fractions=(0.1, 0.5)), 6)
    assert sets.sum(1).tolist() == [1, 4, 1, 4, 1, 4]
    assert not sets[:, 7:].any()
    assert len({tuple(s.tolist()) for s in sets}) > 3
