"""Process rewards by a model that learns outcomes online (PRIME)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, NonNegativeFloat, PositiveFloat, Rule, checked
from oar_lightning.credit.scorers.implicit.base import EPSILON, ImplicitRewards, largest, outcome_rloo, returns
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts

VARIANCE_EPSILON = 1e-8
"""Added to the variance of a step's advantages."""


@checked(
    "scorer",
    Rule(
        lambda lowest, highest: lowest <= highest,
        "scorer.lowest and scorer.highest bound the share of a group that is right: lowest <= highest, got lowest={lowest}, "
        "highest={highest}",
    ),
)
class Prime(ImplicitRewards):
    """A_it = whiten(sum_{j >= t} (process_coef d_ij + outcome_coef g_ij)) (PRIME, arXiv 2502.01456): for gate=signed.

    d and g are leave-one-out advantages of process rewards and of the outcome, d_it = r_it n/(n-1) - sum_j mean_t(r_j) / (n-1)
    and g_i = R_i - mean of the others, at the last token. The process reward r_it = beta log(phi / ref) is divided by the
    batch's largest |sum_{j >= t} r_j|; the last token has none. phi learns by the binary cross-entropy of sigmoid(beta sum_t
    log(phi / ref)). `whiten` makes the mean 0 and the variance 1 over all tokens of all ranks.

    Groups whose share of right completions is outside of [`lowest`, `highest`] have advantage 0, and phi does not learn from
    them. (The authors sample more prompts in their place.)

    Args:
        process_coef: weight of the process rewards' advantages.
        outcome_coef: weight of the outcomes'.
        lowest: the least share of right completions of a group that is used.
        highest: the largest.
        beta, lr, max_norm, update, right_above, token_budget: see `ImplicitRewards`.
    """

    needs_reference = True
    loss_of_rows = True

    def __init__(
        self,
        beta: PositiveFloat = 0.05,
        lr: PositiveFloat = 1e-6,
        max_norm: PositiveFloat = 10.0,
        update: Literal["before", "after"] = "after",
        right_above: float = 0.5,
        process_coef: NonNegativeFloat = 5.0,
        outcome_coef: NonNegativeFloat = 5.0,
        lowest: Fraction = 0.2,
        highest: Fraction = 0.8,
        token_budget: SomeTokens = PASS_TOKENS,
    ) -> None:
        super().__init__(beta, lr, max_norm, update, right_above, token_budget)
        self.process_coef = process_coef
        self.outcome_coef = outcome_coef
        self.lowest = lowest
        self.highest = highest

    def base(self, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        if rollouts.ref_logprobs is None:
            raise ValueError("scorer=prime compares with the policy that training began with, which only task=train has")
        return rollouts.ref_logprobs

    def kept(self, rollouts: Rollouts) -> Bool[Tensor, " B"]:
        size = rollouts.group_size
        share = self.labels(rollouts).view(-1, size).nanmean(1)
        slack = 1e-9  # a share of 0.2 is not exactly 0.2
        return ((share >= self.lowest - slack) & (share <= self.highest + slack)).repeat_interleave(size)

    def scales(self, model: Any, rollouts: Rollouts) -> Float[Tensor, " B"]:
        return torch.full((len(rollouts),), self.beta, dtype=torch.float64, device=rollouts.rewards.device)

    def loss(self, scores: Float[Tensor, " B"], labels: Float[Tensor, " B"], group_size: int) -> tuple[Tensor, int]:
        there = labels.isfinite()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[there], labels[there], reduction="sum")
        return loss, int(there.sum())

    def advantages(self, model: Any, rollouts: Rollouts, rewards: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        mask, size = rollouts.response_mask, rollouts.group_size
        last = mask & (returns(mask.long()) == 1)
        rewards = rewards.masked_fill(~mask | last, 0.0)
        rewards = rewards / (largest(returns(rewards)) + EPSILON)
        outcome = outcome_rloo(rollouts.rewards, size)[:, None] * last
        both = self.process_coef * token_rloo(rewards, mask, size) + self.outcome_coef * outcome
        return whitened(returns(both), mask)


def token_rloo(rewards: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], group_size: int) -> Float[Tensor, "B S"]:
    """d_it = r_it n/(n-1) - sum_j mean_t(r_j) / (n-1) on the mask, 0 elsewhere; n completions of a group."""
    others = max(1, group_size - 1)  # an evaluation may show a single completion
    means = rewards.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)
    baseline = means.view(-1, group_size).sum(1).repeat_interleave(group_size) / others
    return (rewards * (group_size / others) - baseline[:, None]).masked_fill(~mask, 0.0)


def whitened(values: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """(x - mean) / std over the masked tokens of all ranks (std unbiased), 0 elsewhere. All ranks have to call it.

    What is not finite stays so, and has no part in mean and std.
    """
    x = values[mask & values.isfinite()].double()
    count, total = (sum(parts) for parts in zip(*all_gather((len(x), float(x.sum()))), strict=True))
    mean = total / max(1, count)
    variance = sum(all_gather(float((x - mean).square().sum()))) / max(1, count - 1)
    return ((values - mean) / (variance + VARIANCE_EPSILON) ** 0.5).masked_fill(~mask, 0.0)
