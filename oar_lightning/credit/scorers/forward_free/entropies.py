"""Advantages and weights by the entropy of the distribution that a token was drawn from."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, PositiveFloat, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer, aligned, groups, placed
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts


@checked("scorer")
class EntropyAdvantage(PredictionScorer):
    """min(alpha H_t, |A_i| / kappa), to be added to A_i (arXiv 2506.14758): for gate=signed with combine=add.

    With kappa > 1 no sign flips.
    """

    signed = True
    added = True

    def __init__(
        self,
        alpha: PositiveFloat = 0.4,
        kappa: PositiveFloat = 2.0,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(token_budget, region)
        self.alpha = alpha
        self.kappa = kappa

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        entropy = self.predictions(model, rollouts).entropy
        bound = group_advantages_of(rollouts).abs()[:, None].to(entropy.dtype) / self.kappa
        return torch.minimum(self.alpha * entropy, bound).masked_fill(~region_mask(rollouts, self.covers), 0.0)


@checked("scorer")
class Gtpo(PredictionScorer):
    """Weights of GTPO's shaped rewards (arXiv 2508.04349), at each token index t over the completions that are alive there.

    Completions with A > 0: w = a1 + a2 d_t H_it / sum_j H_jt over the d_t of them; with A < 0 the same with 1 / H. Weights of
    one sign and index average a1 + a2. The paper normalises advantages over the tokens of each sign by themselves, which would
    make half of the correct tokens' advantages negative; here the shaped rewards are weights only. For gate=direct.
    """

    reads_groups = True

    def __init__(
        self,
        entropy_share: Annotated[Fraction, "a2 of GTPO (a1 = 1 - a2)"] = 0.1,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(token_budget, region)
        self.entropy_share = entropy_share

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        advantages = group_advantages_of(rollouts)
        mask = region_mask(rollouts, self.covers)
        entropy, there = aligned(self.predictions(model, rollouts).entropy, mask)
        shares = torch.ones_like(entropy)
        for rows in groups(mask, rollouts.group_size):
            for sign in (1.0, -1.0):
                of_sign = there[rows] & (advantages[rows, None] * sign > 0)
                values = entropy[rows].clamp(min=1e-8) ** sign
                mean = values.masked_fill(~of_sign, 0.0).sum(0) / of_sign.sum(0).clamp(min=1)
                shares[rows] = torch.where(of_sign, values / mean.clamp(min=1e-12), shares[rows])
        weights = (1 - self.entropy_share) + self.entropy_share * shares
        return placed(weights, there, mask)
