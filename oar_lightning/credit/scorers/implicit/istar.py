"""Step rewards by a model that learns which completion of a group is better (iStar)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFloat, checked
from oar_lightning.credit.scorers.implicit.base import (
    EPSILON,
    ImplicitRewards,
    largest,
    outcome_rloo,
    returns,
    right_minus_wrong,
)
from oar_lightning.credit.segments import Segmenter, segment_numbers
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts


@checked("scorer")
class IStar(ImplicitRewards):
    """A_it = RLOO of the outcome + step_coef * RLOO of the step's reward (iStar, arXiv 2509.19199): for gate=signed.

    A step's reward is the sum of its tokens' beta log(phi / old policy), divided by the largest sum of any step's last tokens
    in the batch. Its leave-one-out mean is over all other steps of the group. phi learns by -log sigmoid(s_right - s_wrong)
    over all pairs of a group, s the mean of a completion's step rewards. The authors' steps are the turns of an agent; here
    they are segments of all of a completion.

    Args:
        segments: divides a completion into steps.
        step_coef: weight of the steps' advantages.
        beta, lr, max_norm, update, right_above, token_budget: see `ImplicitRewards`.
    """

    needs_old = True
    loss_of_rows = False

    def __init__(
        self,
        segments: Segmenter,
        beta: PositiveFloat = 0.05,
        lr: PositiveFloat = 1e-6,
        max_norm: PositiveFloat = 10.0,
        update: Literal["before", "after"] = "after",
        right_above: float = 0.5,
        step_coef: NonNegativeFloat = 1.0,
        token_budget: SomeTokens = PASS_TOKENS,
    ) -> None:
        super().__init__(beta, lr, max_norm, update, right_above, token_budget)
        self.segments = segments
        self.step_coef = step_coef

    def base(self, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        if rollouts.old_logprobs is None:
            raise ValueError("scorer=istar compares with the policy that sampled, whose log-probabilities only task=train has")
        return rollouts.old_logprobs

    def numbers(self, model: Any, rollouts: Rollouts) -> Int[Tensor, "B S"]:
        """The number of each token's step; -1 outside of the response."""
        mask = rollouts.response_mask
        return segment_numbers(self.segments(model, rollouts, mask), mask) if len(rollouts) else mask.long()

    def scales(self, model: Any, rollouts: Rollouts) -> Float[Tensor, " B"]:
        steps = _last(self.numbers(model, rollouts))[:, 0] + 1
        return self.beta / steps.double().clamp(min=1)

    def loss(self, scores: Float[Tensor, " B"], labels: Float[Tensor, " B"], group_size: int) -> tuple[Tensor, int]:
        differences, pairs = right_minus_wrong(scores, labels, group_size)
        return torch.nn.functional.softplus(-differences[pairs]).sum(), int(pairs.sum())

    def advantages(self, model: Any, rollouts: Rollouts, rewards: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        numbers = self.numbers(model, rollouts)
        outcome = outcome_rloo(rollouts.rewards, rollouts.group_size)[:, None]
        total = outcome + self.step_coef * step_rloo(step_rewards(rewards, numbers), numbers, rollouts.group_size)
        return total.masked_fill(numbers < 0, 0.0)


def step_rewards(rewards: Float[Tensor, "B S"], numbers: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
    """The sum of each step's token rewards [steps of the longest completion], over the largest |sum of a step's last tokens| of
    all ranks. All ranks have to call it."""
    inside = numbers >= 0
    rewards = rewards.masked_fill(~inside, 0.0)
    count = int(numbers.max()) + 1 if inside.any() else 1
    sums = rewards.new_zeros(len(rewards), count + 1).scatter_add(1, numbers.masked_fill(~inside, count), rewards)
    after = torch.nn.functional.pad(returns(sums[:, :-1]), (0, 2))  # later steps; the last column: none
    rest = returns(rewards) - after.gather(1, numbers.masked_fill(~inside, count) + 1)
    return sums[:, :-1] / (largest(rest[inside]) + EPSILON)


def step_rloo(steps: Float[Tensor, "B C"], numbers: Int[Tensor, "B S"], group_size: int) -> Float[Tensor, "B S"]:
    """On each token its step's reward minus the mean over all other steps of the group; 0 for the only step of a group."""
    there = torch.arange(steps.shape[1], device=steps.device) <= _last(numbers)
    wide = group_size * steps.shape[1]
    groups, used = steps.masked_fill(~there, 0.0).view(-1, wide), there.view(-1, wide)
    count = used.sum(1, keepdim=True)
    centred = groups * count - groups.sum(1, keepdim=True)
    centred = (centred / (count - 1).clamp(min=1)).masked_fill(~used, 0.0).view_as(steps)
    return centred.gather(1, numbers.clamp(min=0)).masked_fill(numbers < 0, 0.0)


def _last(numbers: Int[Tensor, "B S"]) -> Int[Tensor, "B 1"]:
    """The number of each completion's last step, -1 without one."""
    return torch.nn.functional.pad(numbers, (0, 1), value=-1).amax(1, keepdim=True)
