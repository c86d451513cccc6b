"""From the effect of each token on each later one to its effect on the answer, through all of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def change_probability(clean: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 - min(1, p' / p) from two log-probabilities of a token as written.

    It is the probability that the token comes out otherwise, where the draws from the two predictions are coupled so that they
    differ as rarely as possible.
    """
    return -(other - clean).clamp(max=0).expm1()


def total_effects(
    changes: Float[Tensor, "N W W"], reasoning: Bool[Tensor, "N W"], answer: Bool[Tensor, "N W"]
) -> Float[Tensor, "N W"]:
    """I_t = 1 - (1 - d_t) prod over later reasoning s of (1 - c_ts I_s), in [0, 1]; 0 outside the reasoning.

    ``changes[n, t, s]`` = c_ts, the probability that token s would change if token t were another; 0 unless s > t. The direct
    effect is d_t = 1 - prod over answer tokens (1 - c_ts). Changes of different tokens are taken as independent.
    """
    carried = answer.to(changes.dtype)  # of a change of s, to the answer: 1 for an answer token, I_s for a reasoning token
    for t in range(changes.shape[1] - 1, -1, -1):
        effect = 1 - (1 - changes[:, t] * carried).prod(1)
        carried[:, t] = torch.where(reasoning[:, t], effect, carried[:, t])
    return carried.masked_fill(~reasoning, 0.0)
