"""Drawing tokens by inverting the distribution."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from oar_lightning.rollout import sampling
from oar_lightning.rollout.sampling import (
    Generation,
    SamplingConfig,
    cut,
    draw_tokens,
    encode_prompts,
    join_generations,
    lay_out,
    pad_left,
)

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


def test_impossible_tokens_are_never_drawn_at_the_ends() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(3, -1)
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert draw_tokens(logits, uniforms, SamplingConfig()).tolist() == [1, 3, 3]


def test_greedy_is_the_argmax() -> None:
    assert draw_tokens(LOGITS, torch.tensor([0.1]), SamplingConfig(temperature=0.0)).tolist() == [3]


def test_chunks_do_not_change_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniforms = torch.randn(50, 30), torch.rand(50)
    whole = draw_tokens(logits, uniforms, SamplingConfig(top_p=0.8))
    monkeypatch.setattr(sampling, "DRAW_BYTES", 8 * 30 * 7)
    assert torch.equal(draw_tokens(logits, uniforms, SamplingConfig(top_p=0.8)), whole)
    monkeypatch.setattr(sampling, "CORE_BYTES", 1)
    assert torch.equal(draw_tokens(logits, uniforms, SamplingConfig(top_p=0.8)), whole)


def test_pad_left() -> None:
    ids, mask = pad_left([[5, 6], [7]], 0, torch.device("cpu"))
    assert ids.tolist() == [[5, 6], [0, 7]]
    assert mask.tolist() == [[True, True], [False, True]]


class Letters:
    """Encodes letters as their places in the alphabet."""

    def __call__(self, texts: list[str], add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[[ord(c) - 96 for c in text] for text in texts])


def test_texts_are_encoded_and_ids_stay() -> None:
    assert encode_prompts(Letters(), ["abc", (7, 8), "b"], range(3)) == [[1, 2, 3], [7, 8], [2]]
    with pytest.raises(ValueError, match=r"1 of 2 prompts have no tokens \(first: number 1\)"):
        encode_prompts(Letters(), ["a", ""], range(2))
    with pytest.raises(ValueError, match="2 prompts and 1 seeds"):
        encode_prompts(Letters(), ["a", "b"], [0])


def laid_out(prompts: list[list[int]], completions: list[list[int]]) -> Generation:
    return lay_out(prompts, completions, [False] * len(prompts), 0, torch.device("cpu"))


def test_prompts_end_and_completions_begin_at_one_column() -> None:
    found = lay_out([[5, 6], [7]], [[1], [2, 3, 4]], [True, False], 9, torch.device("cpu"))
    assert found.token_ids.tolist() == [[5, 6, 1, 9, 9], [9, 7, 2, 3, 4]]
    assert found.attention_mask.int().tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert found.response_mask.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert found.truncated.tolist() == [True, False]


def test_completions_are_cut_at_their_limits() -> None:
    found = cut(laid_out([[5], [5], [5]], [[1, 2], [1, 2], [1]]), [1, 2, 0])
    assert found.response_mask.int().tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert found.attention_mask.int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert found.truncated.tolist() == [True, False, True]


def test_generations_are_joined_at_the_column_where_completions_begin() -> None:
    parts = [laid_out([[5, 6, 7]], [[1]]), laid_out([[8]], [[2, 3]])]
    # a token's state: its id, and what would show that a column was added to it
    parts = [
        p._replace(prediction_states=torch.stack([p.token_ids, -p.token_ids], -1), sampler_logprobs=p.token_ids / 2)
        for p in parts
    ]
    found = join_generations(parts, 9, [[1], [0]])
    ids = [[9, 9, 8, 2, 3], [5, 6, 7, 1, 9]]
    assert found.token_ids.tolist() == ids
    assert found.attention_mask.int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert found.response_mask.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]]
    there = torch.where(found.attention_mask, torch.tensor(ids), 0)
    assert found.prediction_states is not None
    assert found.sampler_logprobs is not None
    assert torch.equal(found.prediction_states, torch.stack([there, -there], -1))
    assert torch.equal(found.sampler_logprobs, there / 2)


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
        if token != passed:  # sums in another order: only where the number lies on an edge
            assert abs(cumulative[row, min(token, passed)] - uniform * cumulative[row, -1]) < 1e-12
        assert probabilities[row, token] > 0
