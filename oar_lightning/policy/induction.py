"""Induction heads (arXiv 2209.11895) that a small policy has from the start.

What a text says of a name can be looked up by what stands before it: "after `keys is` came `cups`". Two layers do it. A head
of the first tells each token what stands some places before it, a head of the second attends to the tokens before which the
same stood. Small policies find this slowly: one of 128 dimensions had not in 25 million tokens. Built in, it takes them some
hundred updates to use it. It is where training begins and nothing more, all weights go on to be trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WRITE = 0.8
"""Size of what the first layer writes, as a multiple of the embedding's own code."""

MATCH = 2.5
"""Size of queries and keys of the second layer."""

COPY = 0.3
"""How much of a token that was attended to is added, towards its being predicted."""

SHARPNESS = 2.25
"""Sets how sharply a head of the first layer attends to one place: by 0.82 to 0.97 of its attention."""

FREQUENCIES = 6
"""Of the rotary position code, the highest so many tell neighbouring places apart."""


@torch.no_grad()
def build_induction_heads(model: Any, seed: int = 0) -> None:
    """Set the attention of a fresh Qwen2 model's first two layers; each head has keys of its own.

    Half of the hidden dimensions hold a token's embedding, the other half is shared out to the heads of the first layer: head
    h writes there a code of the token h + 1 places before. Head h of the second layer compares the token h + 1 places before
    the query with that h + 2 places before the key, so that it finds what followed the same token h + 1 places later; the last
    head compares the query's own token with the one before the key.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = hidden // heads
    code, own = size // 2, hidden // 2
    generator = torch.Generator().manual_seed(seed)

    def directions(count: int) -> Tensor:
        """[count hidden], orthonormal, of the embedding's half."""
        basis = torch.linalg.qr(torch.randn(own, count, generator=generator))[0].T
        return torch.nn.functional.pad(basis, (0, hidden - own))

    token, content = directions(code), directions(size)
    before = [torch.eye(hidden)[own + code * head : own + code * (head + 1)] for head in range(heads)]
    embedding = model.get_input_embeddings().weight
    embedding[:, :own] = torch.randn(embedding.shape[0], own, generator=generator) / own**0.5
    embedding[:, own:] = 0.0
    first, second = (model.model.layers[layer].self_attn for layer in (0, 1))
    for layer in model.model.layers[:2]:
        layer.mlp.down_proj.weight.mul_(0.1)
    _attend_to_places_before(first, size, config.rope_parameters["rope_theta"])
    first.o_proj.weight.zero_()
    slow = _slow_dimensions(size)
    for head in range(heads):
        rows = slice(size * head, size * (head + 1))
        first.v_proj.weight[rows] = torch.nn.functional.pad(token, (0, 0, 0, size - code))
        first.o_proj.weight[:, size * head : size * head + code] = WRITE * before[head].T
        query, key = (before[head], before[head + 1]) if head + 1 < heads else (token, before[0])
        second.q_proj.weight[rows] = MATCH * slow @ query
        second.k_proj.weight[rows] = MATCH * slow @ key
        second.v_proj.weight[rows] = content
        second.o_proj.weight[:, rows] = COPY * content.T


def _attend_to_places_before(attention: Any, size: int, theta: float) -> None:
    """By the biases of queries and keys: what the rotary code makes of a constant depends on the distance alone."""
    half = size // 2
    turns = theta ** (-torch.arange(half) / half)
    amplitude = torch.zeros(half)
    amplitude[:FREQUENCIES] = SHARPNESS * size**0.25
    for head in range(attention.q_proj.bias.numel() // size):
        back = (head + 1) * turns
        rows = slice(size * head, size * (head + 1))
        attention.k_proj.bias[rows] = torch.cat([amplitude, torch.zeros(half)])
        attention.q_proj.bias[rows] = torch.cat([amplitude * back.cos(), -amplitude * back.sin()])


def _slow_dimensions(size: int) -> Tensor:
    """[size size/2]: puts a code into the dimensions that the rotary code hardly turns within a text."""
    half = size // 2
    slow = [*range(half // 2, half), *range(half + half // 2, size)]
    return torch.eye(size)[:, slow]
