"""Which tokens to remove first. Arrays ``[B R]`` hold each row's reasoning tokens in order, padded on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import Rule
from oar_lightning.common.shares import count_of
from oar_lightning.credit.scorers.base import row_generator
from oar_lightning.policy.attention import masked_positions
from oar_lightning.types import Rollouts

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""ERASER's (arXiv 1911.03429)."""

SOME_FILLS = Rule(
    lambda fills: len(fills) > 0 and set(fills) <= {"pad", "mean_embedding", "random_token", "model_sample"},
    "lab.faithfulness.fills={fills} must be some of pad, mean_embedding, random_token, model_sample",
)
RISING = Rule(
    lambda fractions: (
        len(fractions) > 0 and sorted(set(fractions)) == list(fractions) and fractions[0] > 0 and fractions[-1] < 1
    ),
    "lab.faithfulness.fractions={fractions} must be shares of tokens, rising and in (0, 1)",
)


def toward_outcome(scores: Float[Tensor, "B S"], signed: bool, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B S"]:
    """Scores by which the tokens that a completion owes its outcome to rank first.

    A score with a sign says whether a token raised the reward: it counts with the sign of the completion's advantage, by its
    size where that is 0.
    """
    if not signed:
        return scores
    side = advantages.sign().to(scores)[:, None]
    return torch.where(side == 0, scores.abs(), scores * side)


def ranks(scores: Float[Tensor, "B S"], rollouts: Rollouts, seed: int = 0) -> Int[Tensor, "B R"]:
    """The rank of each reasoning token, 0 for the largest score; padding ranks last, as do scores that are no number.

    Equal scores are in a random order, which is the same for all estimators: seeded by the row's tokens and `seed`.
    """
    columns, valid = masked_positions(rollouts.reasoning_mask)
    values = scores.double().gather(1, columns).nan_to_num(nan=-math.inf).masked_fill(~valid, -math.inf)
    mixed = torch.arange(columns.shape[1]).repeat(len(rollouts), 1)
    for row, count in enumerate(valid.sum(1).tolist()):
        mixed[row, :count] = torch.randperm(count, generator=row_generator(rollouts, row, "ties", seed))
    mixed = mixed.to(values.device)
    order = mixed.gather(1, values.gather(1, mixed).argsort(dim=1, descending=True, stable=True))
    return order.argsort(1)


def first_share(rank: Int[Tensor, "B R"], counts: Sequence[int], fraction: float) -> Bool[Tensor, "B R"]:
    """The tokens that rank first: of each row's `counts` tokens the given fraction, rounded up."""
    most = torch.tensor([count_of(fraction, n) for n in counts], device=rank.device)
    return rank < most[:, None]
