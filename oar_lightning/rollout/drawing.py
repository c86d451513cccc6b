"""The draw of a token: random numbers that belong to a completion, and the distribution inverted at them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.rollout.sampling import SamplingConfig

DRAW_BYTES = 64 * 2**20
"""Probabilities, counted as float64, alive at any time in `draw_tokens`."""

ONE_LEVEL, BLOCK = 4096, 128
"""Up to so many probabilities are cumulated one by one; more of them in blocks of so many."""


def uniform_draws(samples: int, seeds: Sequence[int], limits: Sequence[int]) -> Float[Tensor, "B T"]:
    """The random numbers of each prompt's completions, one a token, in [0, 1); -1 beyond a completion's limit."""
    draws = [torch.rand(samples, limit, generator=generator(seed)) for seed, limit in zip(seeds, limits, strict=True)]
    return torch.cat([torch.nn.functional.pad(draw, (0, max(limits) - draw.shape[1]), value=-1.0) for draw in draws])


def draw_tokens(logits: Float[Tensor, "n V"], uniforms: Float[Tensor, " n"], config: SamplingConfig) -> Int[Tensor, " n"]:
    """The token at which the cumulative distribution passes each row's uniform number in [0, 1); argmax at temperature 0.

    This inversion takes one random number a token, which belongs to the row whatever else is in the batch. It costs a fraction
    of `torch.multinomial`, which draws one number for each token of the vocabulary.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    rows = max(1, DRAW_BYTES // (8 * logits.shape[1]))

    def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
        scaled = logits if config.temperature == 1 else logits / config.temperature
        probabilities = scaled.softmax(-1)
        if config.top_p == 1:
            return _invert(probabilities, uniforms)
        inside, order = _nucleus(probabilities.double(), config.top_p)
        return order.gather(1, _invert(inside, uniforms)[:, None]).squeeze(1)

    return torch.cat([draw(*chunk) for chunk in zip(logits.split(rows), uniforms.split(rows), strict=True)])


def _invert(probabilities: Float[Tensor, "n V"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Index at which each row's cumulative sum, in float64, passes its number. Of a large vocabulary only the sums of blocks
    are cumulated, and then the block in which it passes. A block is summed in the precision that its probabilities have: in
    float64 that takes longer than the softmax, and no probability is known better."""
    thresholds = uniforms.double()[:, None]
    if probabilities.shape[1] <= ONE_LEVEL:
        cumulative = probabilities.double().cumsum(-1)
        return _passed(cumulative, thresholds * cumulative[:, -1:]).squeeze(1)
    short = -probabilities.shape[1] % BLOCK  # padding copies all, also where nothing is added
    padded = torch.nn.functional.pad(probabilities, (0, short)) if short else probabilities
    blocks = padded.unflatten(1, (-1, BLOCK))
    cumulative = blocks.sum(-1).cumsum(-1, dtype=torch.float64)
    thresholds = thresholds * cumulative[:, -1:]
    block = _passed(cumulative, thresholds)
    before = cumulative.gather(1, (block - 1).clamp(min=0)).masked_fill_(block == 0, 0.0)
    inner = before + blocks.gather(1, block[..., None].expand(-1, -1, BLOCK)).squeeze(1).double().cumsum(-1)
    last = torch.nextafter(inner[:, -1:], torch.zeros_like(before))  # the block's sum was rounded otherwise
    chosen = block * BLOCK + _passed(inner, torch.minimum(thresholds, last))
    return chosen.squeeze(1).clamp(max=probabilities.shape[1] - 1)  # of a diverged policy, too


def _passed(cumulative: Float[Tensor, "n K"], thresholds: Float[Tensor, "n 1"]) -> Int[Tensor, "n 1"]:
    # right=True passes over what has probability 0
    return torch.searchsorted(cumulative, thresholds, right=True).clamp(max=cumulative.shape[1] - 1)


def _nucleus(probabilities: Float[Tensor, "n V"], top_p: float) -> tuple[Float[Tensor, "n V"], Int[Tensor, "n V"]]:
    """The probabilities in descending order, 0 outside of the nucleus, and the tokens that they belong to."""
    probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = probabilities.cumsum(-1) - probabilities >= top_p  # the first token is always inside
    return probabilities.masked_fill(outside, 0.0), order
