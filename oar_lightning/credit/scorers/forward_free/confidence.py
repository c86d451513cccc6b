"""Weights and advantages by how sure the policy was of a token."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFraction, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer, groups
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts


class Probability(PredictionScorer):
    """The token's probability p. With gate=direct and strength alpha: AR's w = alpha p + 1 - alpha (arXiv 2505.12929)."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.predictions(model, rollouts).logprobs.exp().masked_fill(~region_mask(rollouts, self.covers), 0.0)


@checked("scorer")
class Steer(PredictionScorer):
    """Weights that shrink where an update would change the entropy much (STEER, arXiv 2510.10150): for gate=direct.

    Omega_t = |A (1 - p) (log p + H)|, the first-order change at the first update on a batch; w = exp(-k Omega) with
    k = -log(low) / max(max Omega, 0.02), the largest over the whole step (all ranks), so that w is in [low, 1].
    """

    reads_all_rows = True
    reads_step = True

    def __init__(
        self,
        low: Annotated[PositiveFraction, "the smallest weight"] = 0.8,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(token_budget, region)
        self.low = low

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        found = self.predictions(model, rollouts)
        mask = region_mask(rollouts, self.covers)
        p = found.logprobs.exp()
        change = (group_advantages_of(rollouts)[:, None].to(p.dtype) * (1 - p) * (found.logprobs + found.entropy)).abs()
        change = change.masked_fill(~mask, 0.0)
        # a completion that cannot be read is its own matter
        largest = max(all_gather(float(change.nan_to_num(0.0, 0.0).max())))
        return (math.log(self.low) / max(largest, 0.02) * change).exp().masked_fill(~mask, 0.0)


@checked("scorer")
class Ucas(PredictionScorer):
    """Advantages by confidence (UCAS, arXiv 2510.10649): for gate=signed with combine=replace.

    c_i: z-score over the group of the completion's self-certainty; A' = A exp(-reward_rate c) where A > 0, else
    A exp(punish_rate c). A_it = A' - token_rate z_t, z_t the token's logit, min-max over the step (all ranks); not below 0
    where A' > 0. Rates are the authors' constants. They sum the self-certainty over a completion, which confounds it with
    length; the default is the mean.
    """

    signed = whole = True
    reads_all_rows = True
    reads_groups = True
    reads_step = True

    def __init__(
        self,
        reward_rate: NonNegativeFloat = 0.25,
        punish_rate: NonNegativeFloat = 0.35,
        token_rate: NonNegativeFloat = 0.05,
        certainty: Literal["mean", "sum"] = "mean",
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(token_budget, region)
        self.reward_rate = reward_rate
        self.punish_rate = punish_rate
        self.token_rate = token_rate
        self.certainty = certainty

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        found = self.predictions(model, rollouts)
        mask = region_mask(rollouts, self.covers)
        certainty = found.certainty.masked_fill(~mask, 0.0).sum(1)
        if self.certainty == "mean":
            certainty = certainty / mask.sum(1).clamp(min=1)
        known = mask.any(1)  # without a token there is nothing to be sure of
        c = torch.zeros_like(certainty)
        for rows in groups(mask, rollouts.group_size):
            c[rows] = c[rows].masked_scatter(known[rows], _standardized(certainty[rows][known[rows]]))
        a = group_advantages_of(rollouts).to(c.dtype)
        of_row = torch.where(a > 0, a * (-self.reward_rate * c).exp(), a * (self.punish_rate * c).exp())[:, None]
        inside = found.logits[mask & found.logits.isfinite()]
        low = min(all_gather(float(inside.min()) if len(inside) else math.inf))
        high = max(all_gather(float(inside.max()) if len(inside) else -math.inf))
        z = (found.logits - low) / (high - low) if high > low else torch.full_like(found.logits, 0.5)
        out = of_row - self.token_rate * z
        return torch.where(of_row > 0, out.clamp(min=0), out).masked_fill(~mask, 0.0)


def _standardized(values: Float[Tensor, " G"]) -> Float[Tensor, " G"]:
    """Z-scores; zeros where all are equal, and for a single value."""
    if len(values) < 2:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std() + 1e-6)
