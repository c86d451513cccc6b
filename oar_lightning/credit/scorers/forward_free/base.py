"""What forward-free scorers have in common."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.predictions import Predictions, passes, predictions
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts


@checked("scorer")
class PredictionScorer(Scorer):
    """Base of scorers that read `Predictions`.

    Args:
        token_budget: padded tokens of one pass where no states are kept, or `auto`; bounds memory, does not change the numbers.
        region: the tokens that are scored.
    """

    def __init__(self, token_budget: SomeTokens = PASS_TOKENS, region: Region = "response") -> None:
        self.covers = region
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)

    def predictions(self, model: Any, rollouts: Rollouts) -> Predictions:
        """The numbers of all tokens of the region."""
        self.metrics = {"forward_equivalents": passes(rollouts)}
        return predictions(model, rollouts, region_mask(rollouts, self.covers), self.token_budget)


def groups(mask: Bool[Tensor, "B S"], group_size: int) -> list[slice]:
    """The rows of each group."""
    return [slice(start, start + group_size) for start in range(0, len(mask), group_size)]


def aligned(values: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Each row's masked values moved to the front, so that column t holds its t-th token; and which are there."""
    counts = mask.sum(1)
    there = torch.arange(int(counts.max()) if len(counts) else 0, device=mask.device) < counts[:, None]
    out = values.new_zeros(there.shape)
    out[there] = values[mask]
    return out, there


def placed(values: Float[Tensor, "B T"], there: Bool[Tensor, "B T"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """The inverse of `aligned`, 0 elsewhere."""
    out = values.new_zeros(mask.shape)
    out[mask] = values[there]
    return out
