"""Drawing tokens by inverting the distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oar_lightning.rollout import drawing
from oar_lightning.rollout.drawing import draw_tokens
from oar_lightning.rollout.sampling import SamplingConfig

LOGITS = torch.tensor([[0.0, 1.0, -1.0, 2.0, float("-inf"), 0.5]])
GRID = torch.linspace(0, 1, 2001)[:-1]


def shares(config: SamplingConfig, logits: torch.Tensor = LOGITS) -> np.ndarray:
    """How much of [0, 1) leads to each token."""
    drawn = draw_tokens(logits.expand(len(GRID), -1), GRID, config)
    return np.bincount(drawn.numpy(), minlength=logits.shape[1]) / len(GRID)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_each_token_gets_its_probability_of_the_unit_interval(temperature: float) -> None:
    p = np.exp(LOGITS[0].numpy().astype(float) / temperature)
    np.testing.assert_allclose(shares(SamplingConfig(temperature=temperature)), p / p.sum(), atol=2 / len(GRID))


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    p = np.exp(LOGITS[0].numpy().astype(float))
    p /= p.sum()
    order = np.argsort(-p)
    for top_p in (0.01, 0.5, 0.7, 0.85, 0.999):
        inside = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1]
        expected = np.zeros_like(p)
        expected[inside] = p[inside] / p[inside].sum()
        np.testing.assert_allclose(shares(SamplingConfig(top_p=top_p)), expected, atol=2 / len(GRID))


def test_a_nucleus_that_is_just_top_p_has_no_further_token() -> None:
    none = float("-inf")
    assert shares(SamplingConfig(top_p=0.5), torch.tensor([[0.0, 0.0, none, none]])).tolist() == [1, 0, 0, 0]


def test_impossible_tokens_are_never_drawn_at_the_ends() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(3, -1)
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert draw_tokens(logits, uniforms, SamplingConfig()).tolist() == [1, 3, 3]


def test_greedy_is_the_argmax() -> None:
    assert draw_tokens(LOGITS, torch.tensor([0.1]), SamplingConfig(temperature=0.0)).tolist() == [3]


def test_chunks_do_not_change_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniforms = torch.randn(50, 30), torch.rand(50)
    whole = draw_tokens(logits, uniforms, SamplingConfig(top_p=0.8))
    monkeypatch.setattr(drawing, "DRAW_BYTES", 8 * 30 * 7)
    assert torch.equal(draw_tokens(logits, uniforms, SamplingConfig(top_p=0.8)), whole)


@pytest.mark.parametrize("size", [4096, 4097, 20_000, 2**15])
def test_a_large_vocabulary_is_cumulated_in_blocks_to_the_same_draws(size: int) -> None:
    """Also next to 0 and 1, where whole blocks have no probability, and where one token has all."""
    rng = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(300, size, generator=rng)
    logits[100:150, torch.rand(size, generator=rng) < 0.98] = -torch.inf
    logits[150, : size - 3] = -torch.inf
    logits[151, 3:] = -torch.inf
    logits[200:210, 1000] = 80.0
    uniforms = torch.rand(300, generator=rng)
    uniforms[::3], uniforms[1::3] = 1 - 2.0**-24, 0.0
    drawn = draw_tokens(logits, uniforms, SamplingConfig())
    probabilities = logits.softmax(-1)
    cumulative = np.cumsum(probabilities.double().numpy(), axis=1)
    for row, (token, uniform) in enumerate(zip(drawn.tolist(), uniforms.double().tolist(), strict=True)):
        passed = np.searchsorted(cumulative[row], uniform * cumulative[row, -1], side="right")
        if token != passed:  # sums are rounded otherwise: only where the number lies on an edge, within float32's precision
            assert abs(cumulative[row, min(token, passed)] - uniform * cumulative[row, -1]) < 2**-23
        assert probabilities[row, token] > 0


def test_a_diverged_policy_draws_tokens_of_the_vocabulary() -> None:
    """Of numbers that are none, any: but one that the embeddings have."""
    for size in (400, 4097, 5000):
        drawn = draw_tokens(torch.full((2, size), torch.nan), torch.tensor([0.0, 0.9]), SamplingConfig())
        assert (drawn < size).all()
