"""Statistics of gradient sums, with intervals by the jackknife over blocks of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from oar_lightning.lab.gradients.sums import GradientSums, added
from oar_lightning.reporting.statistics import Interval, students_half

Quality = Mapping[str, Mapping[str, Interval]]
"""Estimator -> statistic -> interval; see `statistics`."""


def statistics(sums: GradientSums) -> dict[str, dict[str, float]]:
    """The statistics of each estimator's gradient g of one batch, over all coordinates j.

    ``raw`` = |E g|^2 / E |g|^2, ``adam`` = mean_j (E g_j)^2 / E g_j^2. (E g)^2 is the mean product of *different* batches, so
    that noise does not count as signal; it may come out below 0. The second is scaled as Adam scales its steps.
    ``variance/r`` = (E |g|^2 - |E g|^2) over that of the reference r.
    ``same_batch/r`` = E <g, g_r> / sqrt(E |g|^2 E |g_r|^2), the cosine of two gradients of one batch, noise and all.
    ``cosine/r`` = <E g, E g_r> / (|E g| |E g_r|) and ``adam_cosine/r``, the same with each coordinate over its root mean
    square; NaN where a mean does not rise above the noise. Both are estimates that may leave [-1, 1].
    Coordinates without any gradient, such as embeddings of tokens that no text holds, count in none.
    """
    n = sums.batches
    if n < 2:
        raise ValueError(f"signal is what different batches have in common: at least 2 are needed, got {n}")
    pairs = n * (n - 1)
    total, squares = sums.total.double(), sums.squares.double() / n
    signal = (total.square() - n * squares) / pairs
    scale = squares.sqrt()
    raw, size = signal.sum(1), squares.sum(1)
    found: dict[str, dict[str, float]] = {}
    for m, name in enumerate(sums.names):
        seen = squares[m] > 0
        adam = (signal[m][seen] / squares[m][seen]).mean()
        found[name] = {"raw": float(raw[m] / size[m]), "adam": float(adam)}
    for r, reference in enumerate(sums.references):
        at = sums.names.index(reference)
        common = (total * total[at] - sums.products[r].double()) / pairs
        for m, name in enumerate(sums.names):
            found[name] |= {
                f"variance/{reference}": float((size[m] - raw[m]) / (size[at] - raw[at])),
                f"same_batch/{reference}": float(sums.products[r, m].double().sum() / n / (size[m] * size[at]).sqrt()),
                f"cosine/{reference}": _cosine(common[m], signal[m], signal[at]),
                f"adam_cosine/{reference}": _cosine(
                    _over(common[m], scale[m] * scale[at]), _over(signal[m], squares[m]), _over(signal[at], squares[at])
                ),
            }
    return found


def _over(values: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, values / scale.clamp(min=torch.finfo(scale.dtype).tiny), 0.0)


def _cosine(common: Tensor, own: Tensor, other: Tensor) -> float:
    sizes = own.sum(), other.sum()
    return float(common.sum() / (sizes[0] * sizes[1]).sqrt()) if min(sizes) > 0 else float("nan")


def gradient_quality(blocks: Sequence[GradientSums]) -> dict[str, dict[str, Interval]]:
    """The statistics over all blocks, with 95 % intervals by the jackknife: each block is left out once, and the standard error
    counts as Student's t of as many blocks says. `n` counts batches.

    Raises:
        ValueError: for fewer than two blocks.
    """
    if len(blocks) < 2:
        raise ValueError(f"an interval needs at least 2 blocks of batches, got {len(blocks)}")
    whole, n = statistics(added(blocks)), sum(block.batches for block in blocks)
    without = [statistics(added([*blocks[:i], *blocks[i + 1 :]])) for i in range(len(blocks))]
    return {
        name: {key: _interval(value, [left[name][key] for left in without], n) for key, value in values.items()}
        for name, values in whole.items()
    }


def _interval(value: float, without: Sequence[float], batches: int) -> Interval:
    left = torch.tensor(without, dtype=torch.float64)
    n = len(left)
    error = float(((n - 1) / n * (left - left.mean()).square().sum()).sqrt())
    half = students_half(error, n)
    return Interval(value, value - half, value + half, batches)
