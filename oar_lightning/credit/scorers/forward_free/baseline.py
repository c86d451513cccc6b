"""A baseline for each token that makes the policy gradient's variance small."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.component import region_mask
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer, aligned, groups, placed
from oar_lightning.types import Rollouts


class Otb(PredictionScorer):
    """Token advantages A_it = R_i - B_t (OTB, arXiv 2602.07078): for gate=signed with combine=replace.

    e_t = 1 - 2 p_t + sum_v pi_v^2 = |d log pi(y_t) / d logits|^2; W_it = sum of e up to t; B_t = sum_i R_i W_it / sum_i W_it
    over the completions of the group that are alive at t; 0 beyond the second longest, where one is strictly longest. The own
    completion is inside its baseline, so that the only one of a group scores 0, and nothing is divided by a standard deviation.
    A group of equal rewards gets no advantage (see `credit.assign`), though the formula has some where one is strictly longest.
    Completions whose reward is not known (NaN) are left out and score 0.
    """

    signed = whole = True
    reads_groups = True

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        found = self.predictions(model, rollouts)
        mask = region_mask(rollouts, self.covers)
        size, there = aligned(1 - 2 * found.logprobs.exp() + found.collision, mask)
        known = rollouts.rewards.isfinite()[:, None]
        counted = there & known
        weights = size.clamp(min=0).cumsum(1).masked_fill(~counted, 0.0)
        rewards = rollouts.rewards.to(weights.dtype)[:, None].masked_fill(~known, 0.0)
        baseline = torch.zeros_like(weights)
        for rows in groups(mask, rollouts.group_size):
            alive = counted[rows].sum(0)
            mean = (rewards[rows] * weights[rows]).sum(0) / (weights[rows].sum(0) + 1e-8)
            several = int(known[rows].sum()) > 1
            baseline[rows] = torch.where(alive > 1, mean, torch.zeros_like(mean)) if several else mean
        return placed((rewards - baseline).masked_fill(~known, 0.0), there, mask)
