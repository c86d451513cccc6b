"""Distances of spans against brute force, exact transport and cases worked out by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from oar_lightning.credit.scorers.forward_free import Shear
from oar_lightning.credit.scorers.forward_free.span_distances import (
    Distance,
    Mmd,
    Spans,
    Wasserstein,
    box_means,
    median_squared_distance,
    nearest,
    squared_distances,
    transport_solver,
)
from oar_lightning.planning.empty import peak_bytes

X = [(0, 4), (2, 6), (4, 8), (8, 9)]
Y = [(0, 3), (2, 5), (5, 9)]
VARIANCE = torch.tensor(2.0, dtype=torch.float64)


def spans(bounds: list[tuple[int, int]], seed: int = 0, shift: float = 0.0) -> Spans:
    rng = torch.Generator().manual_seed(seed)
    states = torch.randn(bounds[-1][1], 5, generator=rng, dtype=torch.float64) + shift
    return Spans(states, *(torch.tensor(x) for x in zip(*bounds, strict=True)))


def of_pairs(distance: Distance, x: Spans, y: Spans) -> Tensor:
    return distance.between(x, y, distance.own(x), distance.own(y))


def kernel_mean(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean([np.exp(-((u - v) ** 2).sum() / (2 * float(VARIANCE))) for u in a for v in b]))


def test_discrepancies_against_brute_force() -> None:
    x, y = spans(X), spans(Y, 1)
    found = of_pairs(Mmd(VARIANCE), x, y)
    for k, (begin, end) in enumerate(X):
        for j, (other_begin, other_end) in enumerate(Y):
            a, b = x.states[begin:end].numpy(), y.states[other_begin:other_end].numpy()
            squared = kernel_mean(a, a) + kernel_mean(b, b) - 2 * kernel_mean(a, b)
            assert float(found[k, j]) == pytest.approx(squared**0.5, abs=1e-10)


def test_equal_sets_have_no_discrepancy() -> None:
    """In another order of tokens too."""
    x = spans(X)
    y = x._replace(states=x.states[[3, 1, 0, 2, *range(4, 9)]])
    assert of_pairs(Mmd(VARIANCE), x, x).diagonal().tolist() == [0] * len(X)
    assert float(of_pairs(Mmd(VARIANCE), x, y)[0, 0]) == 0
    assert (of_pairs(Mmd(VARIANCE), x, y)[1] > 0).all()


def test_means_of_boxes_round_by_sides() -> None:
    """A span of one token far down a large block."""
    rng = torch.Generator().manual_seed(0)
    values = torch.rand(1000, 1000, generator=rng, dtype=torch.float64)
    one = Spans(values, torch.tensor([0, 998]), torch.tensor([7, 999]))
    expected = torch.stack([torch.stack([values[:7, :7].mean(), values[:7, 998].mean()]), values[998, [0, 998]]])
    expected[1, 0] = values[998, :7].mean()
    torch.testing.assert_close(box_means(values, one, one), expected, rtol=0, atol=1e-12)


def test_equal_vectors_have_distance_zero() -> None:
    x = 1e3 * spans(X).states
    assert squared_distances(x, x).diagonal().tolist() == [0] * 9
    expected = (x[:, None] - x).square().sum(2)
    torch.testing.assert_close(squared_distances(x.float(), x.float()), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("most", [0, 1, 4, 5, 10**6])
def test_blocks_do_not_matter(most: int) -> None:
    x, y = spans(X), spans(Y, 1)
    whole = of_pairs(Mmd(VARIANCE), x, y)
    of_x, of_y = nearest(x, y, Mmd(VARIANCE), most)
    torch.testing.assert_close(of_x, whole.amin(1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(of_y, whole.amin(0), rtol=1e-9, atol=1e-12)
    assert all(len(part.states) <= max(most, 4) for _, part in x.blocks(most))
    assert len(x.blocks(most)) == {0: 4, 1: 4, 4: 4, 5: 3}.get(most, 1)


def test_memory_does_not_grow_with_the_texts() -> None:
    """But for a distance of each span; all distances at once would take four times as much for twice the tokens."""

    def peak(tokens: int, most: int = 24) -> int:
        x, y = (spans([(k, k + 8) for k in range(0, tokens, 4)], seed) for seed in (0, 1))
        return peak_bytes(lambda: nearest(x, y, Mmd(VARIANCE), most))

    assert peak(96) < peak(192) < 1.3 * peak(96)
    assert peak(96, 48) > 2 * peak(96)


def test_the_median_is_that_of_pairs_and_of_a_sample_where_texts_are_long() -> None:
    texts = [spans(X, seed).states for seed in range(3)] + [torch.empty(0, 5)]
    tokens = np.concatenate([text.numpy() for text in texts])
    squared = sorted(float(((a - b) ** 2).sum()) for i, a in enumerate(tokens) for b in tokens[:i])
    assert float(median_squared_distance(texts)) == pytest.approx(squared[(len(squared) - 1) // 2])
    long = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0))
    assert float(median_squared_distance([long])) == pytest.approx(9.0, rel=0.1)  # 2 chi^2 with 5 degrees of freedom: 8.7
    mostly_equal = torch.zeros(5, 2, dtype=torch.float64)
    mostly_equal[0] = 3.0
    assert float(median_squared_distance([mostly_equal])) == pytest.approx(18 * 4 / 10)
    assert 0 < float(median_squared_distance([torch.ones(4, 2)])) < 1e-300


def wasserstein(scale: float = 1.0, epsilon: float = 0.1, iterations: int = 300) -> Wasserstein:
    pytest.importorskip("ot.batch", reason="the extra transport is not installed")
    return Wasserstein(torch.tensor(scale, dtype=torch.float64), epsilon, iterations, transport_solver())


def test_transport_against_the_best_assignment() -> None:
    """The blurred plan costs no less, and at most epsilon log n more."""
    distance = wasserstein()
    x, y = spans([(0, 4), (2, 6)]), spans([(0, 4), (4, 8)], 1)
    found = of_pairs(distance, x, y)
    for k in range(2):
        for j in range(2):
            a, b = (s.states[int(s.begins[i]) : int(s.ends[i])] for s, i in ((x, k), (y, j)))
            costs = torch.cdist(a, b).numpy()
            least = costs[linear_sum_assignment(costs)].mean()
            assert least - 1e-6 <= float(found[k, j]) <= least + distance.epsilon * np.log(4)


def test_transport_of_one_token_by_hand() -> None:
    """All of it has one place to go, spans of other sizes beside it."""
    x, y = spans(X), spans(Y, 1)
    expected = [float((x.states[8] - y.states[a:b]).norm(dim=1).mean()) / 2 for a, b in Y]
    assert of_pairs(wasserstein(scale=2.0), x, y)[3].tolist() == pytest.approx(expected, rel=1e-9)


def test_transport_to_translated_states_costs_the_translation() -> None:
    x, c = spans([(0, 6)]), 5.0
    y = x._replace(states=x.states + torch.tensor([c, 0, 0, 0, 0]))
    spread = float(torch.cdist(x.states, x.states).max())
    cost = float(of_pairs(wasserstein(), x, y))
    assert c - 1e-9 <= cost <= c + spread
    assert float(of_pairs(wasserstein(epsilon=0.01), x, y)) == pytest.approx(c, abs=0.05)


def test_transport_does_not_depend_on_what_is_solved_at_once() -> None:
    x, y = spans(X), spans(Y, 1)
    whole = of_pairs(wasserstein(iterations=7), x, y)
    torch.testing.assert_close(nearest(x, y, wasserstein(iterations=7), 1)[0], whole.amin(1), rtol=1e-9, atol=1e-12)


def test_a_missing_package_is_told_when_the_scorer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    monkeypatch.delitem(sys.modules, "ot.batch", raising=False)
    with pytest.raises(ImportError, match=r"distance=wasserstein needs .* pip install -e '\.\[transport\]'.*=mmd"):
        Shear(distance="wasserstein")
    Shear()
