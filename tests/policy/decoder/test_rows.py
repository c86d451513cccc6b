"""Rows of a pass: those of tokens, then rows of 0."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.policy.decoder.rows import pick_rows, with_rows


@pytest.mark.parametrize("count", [5, 6, 8])
def test_rows_of_zero_follow(count: int) -> None:
    x = torch.randn(5, 3)
    out = with_rows(x, count)
    assert out.shape == (count, 3)
    assert torch.equal(out[:5], x)
    assert not out[5:].any()
    assert (out is x) == (count == 5)


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
