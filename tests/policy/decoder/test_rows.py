"""Chosen rows of a pass, then rows of 0."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.policy.decoder.rows import pick_rows


@pytest.mark.parametrize(("index", "count"), [([4, 0, 2], 3), ([4, 0, 2], 5), ([], 0), ([], 2), ([1], 1)])
def test_picked_rows_and_their_gradient(index: list[int], count: int) -> None:
    x, upstream = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(count, 3, dtype=torch.float64)
    at = torch.tensor(index, dtype=torch.long)
    out = pick_rows(x, at, count)
    assert torch.equal(out[: len(index)], x[at])
    assert not out[len(index) :].any()
    (gradient,) = torch.autograd.grad((out * upstream).sum(), x)
    expected = torch.zeros_like(x)
    for row, place in enumerate(index):
        expected[place] += upstream[row]
    assert torch.equal(gradient, expected)
