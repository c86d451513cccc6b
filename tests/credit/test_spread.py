"""Means and deviations of masked scores against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oar_lightning.credit.spread import centred_and_std


@pytest.mark.parametrize("size", [1, 2, 4])
def test_against_numpy(size: int) -> None:
    rng = np.random.default_rng(size)
    scores, mask = rng.normal(size=(4, 9)), rng.random((4, 9)) < 0.6
    mask[:, 0] = mask[:, 1] = True
    centred, std = centred_and_std(torch.tensor(scores), torch.tensor(mask), size)
    for group in range(4 // size):
        rows = slice(group * size, (group + 1) * size)
        inside = scores[rows][mask[rows]]
        assert float(std[group]) == pytest.approx(inside.std())
        expected = np.where(mask[rows], scores[rows] - inside.mean(), 0.0)
        assert centred[group].numpy() == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.1, 0.7, -1 / 3])
def test_equal_scores_and_none_lie_exactly_0_apart(value: float) -> None:
    scores = torch.full((2, 7), value, dtype=torch.float64)
    mask = torch.ones(2, 7, dtype=torch.bool)
    assert centred_and_std(scores, mask, 2)[1].tolist() == [[[0.0]]]
    assert centred_and_std(scores, ~mask, 1)[1].flatten().tolist() == [0.0, 0.0]
