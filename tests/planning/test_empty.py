"""Counting what is alive, and running code whose weights are empty."""

from __future__ import annotations

import torch

from oar_lightning.planning.empty import MemoryCounter, no_memory, peak_bytes


def test_live_bytes_are_what_is_alive() -> None:
    with MemoryCounter() as count:
        a = torch.zeros(1000)
        b = a + 1  # 8000 alive
        del a
        c = b[:500].view(5, 100)  # a view holds nothing new
        d = torch.zeros(500)
        assert count.live == 6000
        del b
        assert count.live == 6000
        del c
    assert (count.live, count.peak) == (2000, 8000)
    assert d.nbytes == 2000


def test_ids_are_true_and_weights_are_empty() -> None:
    with no_memory():
        weight = torch.empty(100, 10**9, requires_grad=True)  # 400 GB
    chosen = torch.tensor([True, False, True, False])
    seen: list[tuple[int, ...]] = []

    def work() -> None:
        rows = weight[torch.arange(4)]
        seen.append(tuple(rows[chosen].shape))
        (gradient,) = torch.autograd.grad(rows.square().sum(), weight)
        seen.append(tuple(gradient.shape))
        assert chosen.nonzero().flatten().tolist() == [0, 2]
        assert int(torch.tensor([3, 5]).sum()) == 8

    assert peak_bytes(work) >= 4 * 10**9 * (100 + 4)
    assert seen == [(2, 10**9), (100, 10**9)]


def test_values_that_are_not_there_are_one() -> None:
    with no_memory():
        empty = torch.empty(2, 3)

    def work() -> None:
        assert torch.allclose(empty, empty + 1)
        assert float(empty.sum()) == 1.0
        assert (empty > 2).nonzero().shape == (6, 2)

    peak_bytes(work)
