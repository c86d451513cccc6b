"""Fills: what replaces a masked token. The paper leaves open how much of a score is due to the fill being unusual there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.policy.attention import masked_positions
from oar_lightning.policy.decoder import Decoder, empty_past
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.lm_head import head_logits, rows_per_chunk

BLOCK = 4096
"""The most tokens of the vocabulary whose embeddings are copied at once."""


@dataclass(frozen=True)
class Fill:
    """What replaces masked tokens.

    Args:
        embeddings: of each column of each text; a text's depend on that text alone.
        passes: over the texts that they take.
    """

    embeddings: Callable[[Any, Decoder, Texts, int, int], Float[Tensor, "N S H"]]
    passes: int = 0

    def __call__(self, model: Any, decoder: Decoder, texts: Texts, token_id: int, seed: int) -> Float[Tensor, "N S H"]:
        return self.embeddings(model, decoder, texts, token_id, seed)

    def tokens(self, texts: Texts) -> int:
        """The padded tokens that go through the model."""
        return self.passes * texts.token_ids[:, :-1].numel()


def pad(model: Any, decoder: Decoder, texts: Texts, token_id: int, seed: int) -> Float[Tensor, "N S H"]:
    """`pad`: one token everywhere, as in the paper."""
    ids = torch.full((1, 1), token_id, device=texts.token_ids.device)
    return embed(model, ids).expand(*texts.token_ids.shape, -1)


def mean_embedding(model: Any, decoder: Decoder, texts: Texts, token_id: int, seed: int) -> Float[Tensor, "N S H"]:
    """`mean_embedding`: the mean of the embeddings of the whole vocabulary."""
    vocabulary = torch.arange(model.get_input_embeddings().weight.shape[0], device=texts.token_ids.device)
    one = embed(model, vocabulary[None, :1])
    total = torch.zeros_like(one, dtype=torch.promote_types(one.dtype, torch.float32))
    for ids in vocabulary.split(BLOCK):
        total += embed(model, ids[None]).sum(1, keepdim=True, dtype=total.dtype)
    return (total / len(vocabulary)).to(one).expand(*texts.token_ids.shape, -1)


def random_token(model: Any, decoder: Decoder, texts: Texts, token_id: int, seed: int) -> Float[Tensor, "N S H"]:
    """`random_token`: drawn uniformly from the vocabulary, independently for each column."""
    return embed(model, random_ids(model, texts, seed))


def model_sample(model: Any, decoder: Decoder, texts: Texts, token_id: int, seed: int) -> Float[Tensor, "N S H"]:
    """`model_sample`: a token that the model might have sampled instead, drawn from its prediction without the token itself."""
    return embed(model, sampled_ids(model, decoder, texts, seed))


def random_ids(model: Any, texts: Texts, seed: int) -> Int[Tensor, "N S"]:
    """The tokens of `random_token`."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return (_uniforms(texts, seed) * vocabulary).long().clamp(max=vocabulary - 1)


def sampled_ids(model: Any, decoder: Decoder, texts: Texts, seed: int) -> Int[Tensor, "N S"]:
    """The tokens of `model_sample` in place of the reasoning; other columns as they are."""
    positions, valid = masked_positions(texts.reasoning)
    before = (positions - 1).clamp(min=0)
    states, _ = decoder(empty_past(texts.first), embed(model, texts.token_ids[:, :-1]), (before, valid))
    rows, order = valid.nonzero(as_tuple=True)
    columns = positions[rows, order]
    uniforms = _uniforms(texts, seed)[rows, columns]
    size = rows_per_chunk(model.get_input_embeddings().weight.shape[0])

    def logits_of(hidden: Tensor) -> Tensor:
        return head_logits(model, hidden) / texts.temperature

    drawn = [
        draw(logits_of(states[rows[part], order[part]]), texts.token_ids[rows[part], columns[part]], uniforms[part])
        for part in torch.arange(len(rows), device=rows.device).split(size)
    ]
    ids = texts.token_ids.clone()
    ids[rows, columns] = torch.cat(drawn)
    return ids


FillName = Literal["pad", "mean_embedding", "random_token", "model_sample"]

FILLS: dict[FillName, Fill] = {
    "pad": Fill(pad),
    "mean_embedding": Fill(mean_embedding),
    "random_token": Fill(random_token),
    "model_sample": Fill(model_sample, passes=1),
}


SAME_EACH_DRAW: tuple[FillName, ...] = ("pad", "mean_embedding")
"""Fills that no seed changes."""


def draw(logits: Float[Tensor, "n V"], without: Int[Tensor, " n"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """A token of each softmax(logits) other than `without`, by inversion of the distribution function."""
    return draw_several(logits, without, uniforms[:, None]).squeeze(1)


def draw_several(
    logits: Float[Tensor, "n V"], without: Int[Tensor, " n"], uniforms: Float[Tensor, "n K"]
) -> Int[Tensor, "n K"]:
    """`draw` with K draws of each."""
    allowed = logits.scatter(1, without[:, None], -torch.inf).double().softmax(-1)
    steps = allowed.cumsum(-1)
    return torch.searchsorted(steps, uniforms.to(steps) * steps[:, -1:], right=True).clamp(max=logits.shape[1] - 1)


def _uniforms(texts: Texts, seed: int) -> Float[Tensor, "N S"]:
    """Numbers in [0, 1) for each column, seeded by the text's own tokens."""
    numbers = torch.zeros(texts.token_ids.shape, dtype=torch.float64)
    for row, (first, ids) in enumerate(zip(texts.first.tolist(), texts.token_ids.tolist(), strict=True)):
        drawn = torch.rand(len(ids) - first, dtype=torch.float64, generator=generator("fill", seed, *ids[first:]))
        numbers[row, first:] = drawn
    return numbers.to(texts.token_ids.device)
