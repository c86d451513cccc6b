"""The policy as its own process reward model (SPRO)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.forward_free.base import aligned, placed
from oar_lightning.types import Rollouts


@checked("scorer")
class Spro(Scorer):
    """c_it = R_it - mean of R_t over the completions of the group that have a t-th token; R_t = sum_{j <= t} beta (log pi - log
    ref) (SPRO, arXiv 2507.01551): for gate=signed with combine=add.

    pi is the policy that sampled and ref the frozen one of a KL term. While they are the same all scores are 0, and training is
    GRPO.

    Args:
        beta: weight of the process rewards.
        region: the tokens that are scored.
    """

    signed = True
    added = True
    reads_groups = True
    needs_old = True
    needs_reference = True

    def __init__(self, beta: NonNegativeFloat = 0.05, region: Region = "response") -> None:
        self.covers = region
        self.beta = beta

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without the log-probabilities of both."""
        if rollouts.old_logprobs is None or rollouts.ref_logprobs is None:
            raise ValueError("scorer=spro compares the policy with the one that training began with, which only task=train has")
        mask = region_mask(rollouts, self.covers)
        rewards, there = aligned(self.beta * (rollouts.old_logprobs - rollouts.ref_logprobs).double(), mask)
        totals = rewards.cumsum(1).masked_fill(~there, 0.0)
        size = rollouts.group_size
        count = there.view(-1, size, there.shape[1]).sum(1).clamp(min=1)
        mean = (totals.view(-1, size, there.shape[1]).sum(1) / count).repeat_interleave(size, 0)
        self.metrics = {"forward_equivalents": 1.0}
        return placed((totals - mean).masked_fill(~there, 0.0), there, mask).to(rollouts.old_logprobs)
