"""RLCSD's token advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFloat, Rule, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.gates.base import Gate, shaped
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.objective.diagnostics import sum_and_count
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.types import Credit, Rollouts


@checked(
    "gate",
    Rule(
        lambda least, strength, bound: least < min(strength, bound),
        "gate.least={least} must be less than gate.strength={strength} and gate.bound={bound}, the most that is added; no "
        "token would be changed",
    ),
)
@dataclass(frozen=True)
class ContrastGate(Gate):
    """A_it = A_i + r_t on tokens with |r_t| > least, r = clip(strength * tanh(e / tau), -bound, bound) of signed scores e
    (RLCSD, arXiv 2606.11709).

    A token's advantage keeps to the side of A_i: where r would turn its sign it is 0. The loss is the mean over the other
    tokens plus eta times the mean over the changed ones, where there are any. Both means are over the whole batch of rollouts
    of all ranks, by factors of the advantages beside `loss.reduction=dapo`; the authors' are over a micro-batch. Changed
    tokens that are few thus weigh much more than the others.

    A completion with scores that are not finite gets the group advantage everywhere.

    Args:
        tau: scores beyond it, in nats, saturate.
        strength: the most that is added; the authors' beta and lambda in one.
        bound: of what is added, in size.
        least: tokens to which no more than this is added, in size, keep the group advantage.
        eta: weight of the changed tokens' mean.
        region: the tokens whose scores are read.
    """

    tau: PositiveFloat = 0.02
    strength: Annotated[PositiveFloat, "the most that is added"] = 0.5
    bound: PositiveFloat = 2.0
    least: NonNegativeFloat = 0.02
    eta: NonNegativeFloat = 1.0
    region: Region = "response"

    signed = True
    reads_groups = True
    reads_step = True

    @property
    def averages_tokens(self) -> bool:
        return True

    def added(self, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """r, of changed tokens only."""
        r = (self.strength * (scores.double() / self.tau).tanh()).clamp(-self.bound, self.bound)
        return torch.where(r.abs() > self.least, r, torch.zeros_like(r))

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        mask = region_mask(rollouts, self.region)
        advantages = group_advantages_of(rollouts)[:, None].double()
        usable = mask & (scores.isfinite() | ~mask).all(1, keepdim=True) & advantages.ne(0)
        r = self.added(scores.double().masked_fill(~usable, 0.0))
        out = advantages + r
        out = torch.where(out * advantages > 0, out, torch.zeros_like(out))
        rest, changed = self._factors(r.ne(0), rollouts.response_mask)
        return shaped(scores, out * torch.where(r.ne(0), changed, rest), rollouts)

    def _factors(self, changed: Bool[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> tuple[float, float]:
        """What makes a mean over all tokens the two means: the factors of the other and of the changed tokens."""
        counts = all_gather([int(mask.sum()), int((changed & mask).sum())])
        tokens, some = (sum(of_rank[i] for of_rank in counts) for i in (0, 1))
        return tokens / max(1, tokens - some), self.eta * tokens / max(1, some)

    def metrics(self, credit: Credit, mask: Bool[Tensor, "B S"]) -> Sums:
        """changed_frac: fraction of tokens whose advantage the scores change."""
        changed = self.added(credit.importance).ne(0) & mask
        return {"credit/changed_frac": sum_and_count(changed.sum(1) / mask.sum(1))}
