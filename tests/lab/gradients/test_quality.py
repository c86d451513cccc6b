"""Signal, bias and variance of gradients: against known noise, and a transcription that takes all pairs of batches."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple

import numpy as np
import pytest
import torch

from oar_lightning.lab.gradients.quality import gradient_quality, statistics
from oar_lightning.lab.gradients.sums import GradientSums, added


def blocks(noise: dict[str, float], signal: float = 1.0, size: int = 4000) -> tuple[list[GradientSums], torch.Tensor]:
    """64 gradients in 8 blocks that are one mean plus noise of a known size, each method's ten times larger than the one
    before."""
    generator = torch.Generator().manual_seed(0)
    mean = signal * torch.randn(size, generator=generator)
    made = []
    for _ in range(8):
        batches = []
        for _ in range(8):
            g = torch.stack(
                [10.0**i * (mean + s * torch.randn(size, generator=generator)) for i, s in enumerate(noise.values())]
            )
            g[:, :10] = 0.0  # a token that no text holds
            batches.append(GradientSums.of(list(noise), g, list(noise)[:1]))
        made.append(added(batches))
    return made, mean[10:]


def test_signal_shares_are_those_of_known_noise_whatever_the_scale() -> None:
    noise = {"uniform": 5.0, "quiet": 1.0, "noisy": 20.0}
    made, mean = blocks(noise)
    found = gradient_quality(made)
    for i, (name, sigma) in enumerate(noise.items()):
        shares = mean.square() / (mean.square() + sigma**2)
        assert found[name]["adam"].mean == pytest.approx(float(shares.mean()), abs=0.003)
        raw = float(mean.square().sum() / (mean.square() + sigma**2).sum())
        assert found[name]["raw"].mean == pytest.approx(raw, abs=0.003)
        share = found[name]["raw"]
        assert abs(share.mean - raw) < share.high - share.low < 0.05, "the interval is about as wide as the error"
        assert found[name]["cosine/uniform"].mean == pytest.approx(1.0, abs=0.1), "one direction, whatever the noise"
        assert found[name]["variance/uniform"].mean == pytest.approx((10.0**i * sigma / 5.0) ** 2, rel=0.03)
    assert astuple(found["uniform"]["cosine/uniform"]) == pytest.approx((1.0, 1.0, 1.0, 64))


def test_noise_alone_has_no_signal_and_no_direction() -> None:
    made, _ = blocks({"uniform": 5.0, "other": 1.0}, signal=0.0)
    found = gradient_quality(made)["uniform"]
    for key in ("raw", "adam"):
        assert found[key].low < 0 < found[key].high
        assert abs(found[key].mean) < 0.002
    below = [GradientSums.of(["a"], torch.tensor([[s, -s]]), ["a"]) for s in (1.0, -1.0)]
    assert math.isnan(statistics(added(below))["a"]["cosine/a"]), "its signal is below 0"


def test_against_all_pairs_of_batches() -> None:
    rng = np.random.default_rng(3)
    n, size, names = 6, 5, ("plain", "other")
    mean = rng.normal(size=(2, size))
    g = mean + 0.3 * rng.normal(size=(n, 2, size))
    sums = added([GradientSums.of(names, torch.tensor(batch), names[:1]) for batch in g])
    found = statistics(sums)

    pairs = list(itertools.permutations(range(n), 2))
    signal = np.mean([g[i] * g[j] for i, j in pairs], axis=0)
    common = np.mean([g[i] * g[j][:1] for i, j in pairs], axis=0)
    squares = (g**2).mean(0)
    # of a mean that every batch shares the variance is that around the batches' mean
    variance = g.var(0, ddof=1).sum(-1)
    for m, name in enumerate(names):
        rms = np.sqrt(squares[m] * squares[0])
        expected = {
            "raw": signal[m].sum() / squares[m].sum(),
            "adam": (signal[m] / squares[m]).mean(),
            "variance/plain": variance[m] / variance[0],
            "same_batch/plain": (g[:, m] * g[:, 0]).sum() / np.sqrt((g[:, m] ** 2).sum() * (g[:, 0] ** 2).sum()),
            "cosine/plain": common[m].sum() / np.sqrt(signal[m].sum() * signal[0].sum()),
            "adam_cosine/plain": (common[m] / rms).sum()
            / np.sqrt((signal[m] / squares[m]).sum() * (signal[0] / squares[0]).sum()),
        }
        assert found[name] == pytest.approx(expected, rel=1e-9)


def test_a_coordinate_without_any_gradient_counts_in_none() -> None:
    """Two batches of the gradient (2, 0): all of the first coordinate is signal, the second has nothing to say."""
    batches = [GradientSums.of(["a"], torch.tensor([[2.0, 0.0]])) for _ in range(2)]
    assert statistics(added(batches))["a"] == {"raw": 1.0, "adam": 1.0}


def test_the_jackknife_leaves_out_one_block_at_a_time() -> None:
    made, _ = blocks({"uniform": 1.0}, size=50)
    values = [statistics(added(made[:i] + made[i + 1 :]))["uniform"]["raw"] for i in range(8)]
    error = math.sqrt(7 / 8 * sum((v - np.mean(values)) ** 2 for v in values))
    whole = statistics(added(made))["uniform"]["raw"]
    found = astuple(gradient_quality(made)["uniform"]["raw"])
    t_of_seven = 2.3646  # Student's, two-sided 95 %, from a table
    assert found == pytest.approx((whole, whole - t_of_seven * error, whole + t_of_seven * error, 64), rel=1e-4)


def test_what_cannot_be_estimated_is_refused() -> None:
    one = GradientSums.of(["a"], torch.ones(1, 3))
    with pytest.raises(ValueError, match="at least 2 are needed, got 1"):
        statistics(one)
    with pytest.raises(ValueError, match="at least 2 blocks of batches, got 1"):
        gradient_quality([one + one])
    with pytest.raises(KeyError, match="no gradients of b; there are those of a"):
        one.select(["b"])
