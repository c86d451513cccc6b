"""Counted work against hand counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oar_lightning.benchmark.work import FlopCount, Rates, WorkCount, product_seconds


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
    flops, each = 2 * 600**3, 4 * 600**2
    for rates, seconds in ((Rates(1e9, 1e12, 1e12), flops / 1e9), (Rates(1e15, 1e10, 1e9), 2 * each / 1e9 + each / 1e10)):
        with WorkCount(rates) as count:
            a @ b
        assert count.work == (flops, pytest.approx(seconds)), "read from memory at first, written to the shared cache"
    with WorkCount(Rates(1e12, 1.0, 1.0)) as count:
        a[:10, :10] @ b[:10, :10]
        once = count.work.seconds
        a[:10, :10] @ b[:10, :10]
    assert once == pytest.approx(2 * 4 * 100), "nothing was in a cache before"
    assert count.work.seconds == pytest.approx(once + 2000 / 1e12), "a core's own cache holds them now"


def test_tensors_move_from_where_the_bytes_touched_since_have_left_them() -> None:
    size = 2**22  # bytes of a weight: too many for a core's cache
    weights = [torch.randn(1024, 1024) for _ in range(9)]
    x = torch.randn(1, 1024)
    rates = Rates(1e18, 1e10, 1e9)

    def pass_seconds(number: int) -> float:
        with WorkCount(rates) as count:
            for _ in range(2):
                first = count.work.seconds
                for weight in weights[:number]:
                    x @ weight
        return count.work.seconds - first

    assert pass_seconds(7) == pytest.approx(7 * size / 1e10, rel=0.01), "28 MB: the cache that cores share still has them"
    assert pass_seconds(9) == pytest.approx(9 * size / 1e9, rel=0.01), "36 MB: the first is out when the last was read"


def test_the_seconds_are_those_of_products_and_attention() -> None:
    x = torch.randn(1, 2, 64, 16, requires_grad=True)

    def attend() -> None:
        nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()

    def elementwise() -> None:
        for _ in range(20):
            (torch.randn(500, 500).exp() + 1.0).sum()

    products = product_seconds(lambda: [torch.randn(500, 500) @ torch.randn(500, 500) for _ in range(20)])
    assert product_seconds(elementwise) == 0.0 < product_seconds(attend)
    assert 20 * 2 * 500**3 / 1e13 < products < 20


def test_a_product_that_is_written_in_place_counts() -> None:
    a, b, into = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(3, 4, 6)
    with FlopCount() as count:
        into.baddbmm_(a, b)
        into[0].addmm_(a[0], b[0])
    assert count.total == 2 * (3 + 1) * 4 * 5 * 6
