"""Counted work against hand counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oar_lightning.benchmark.work import FlopCount, Rates, Work, WorkCount


def test_counted_work_is_that_of_the_products() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    with FlopCount() as count:
        a @ b
    assert count.total == 2 * 3 * 5 * 7


def test_counted_work_includes_gradients_and_attention() -> None:
    x = torch.randn(2, 3, 4, 8, requires_grad=True)  # batch, heads, tokens, width
    with FlopCount() as count:
        out = nn.functional.scaled_dot_product_attention(x, x, x)
    forward = 2 * (2 * 2 * 3 * 4 * 4 * 8)  # queries times keys, weights times values
    assert count.total == forward
    with FlopCount() as count:
        torch.autograd.grad(out.sum(), x)
    assert count.total == 2.5 * forward


def test_the_roofline_counts_what_takes_longer_of_work_and_memory() -> None:
    a, b = torch.randn(600, 600), torch.randn(600, 600)  # 1.44 MB each: none stays in a core's cache
    flops, moved = 2 * 600**3, 3 * 4 * 600**2
    for rates, seconds in ((Rates(1e9, 1e12), flops / 1e9), (Rates(1e15, 1e9), moved / 1e9)):
        with WorkCount(rates) as count:
            a @ b
        assert count.work == (flops, pytest.approx(seconds))
    with WorkCount(Rates(1e12, 1.0)) as count:
        a[:10, :10] @ b[:10, :10]
    assert count.work == Work(2000, 2000 / 1e12), "small tensors move for nothing"
