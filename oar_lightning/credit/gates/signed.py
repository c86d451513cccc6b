"""Scores with a sign: token or step advantages, or what is added to the group's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, Positive, Rule, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.gates.base import Gate, shaped
from oar_lightning.objective.advantage import centred_and_std
from oar_lightning.objective.diagnostics import sum_and_count
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.types import Credit, Rollouts


@checked(
    "gate",
    Rule(
        lambda keep_sign, combine: not (keep_sign and combine == "replace"),
        "gate.keep_sign=true compares with the group advantage, which gate.combine=replace does not use",
    ),
    Rule(
        lambda scale, combine: scale > 0 or combine != "replace",
        "gate.scale with gate.combine=replace must be > 0, got {scale}; nothing would be learnt",
    ),
)
@dataclass(frozen=True)
class SignedGate(Gate):
    """Token advantages from signed scores c.

    `replace`: A_it = scale * c_it, for scores that are advantages (VinePPO, arXiv 2410.01679).
    `add`: A_it = A_i + scale * c_it, for scores in the advantage's unit (KTAE, arXiv 2505.16826).
    `multiply`: A_it = A_i (1 + scale * sign(A_i) * c_it), for scores in [-1, 1] with c > 0 for tokens that help the outcome.
    Tokens outside the region get the group advantage, with `replace` 0. A completion with scores that are not finite gets the
    group advantage everywhere.

    Args:
        combine: one of the three.
        scale: factor of the scores; 0 leaves the group advantages as they are (not with `replace`).
        normalize: `row` or `group` divides scores by their standard deviation over the tokens of the completion or group;
            nothing is centred, so signs stay. Scores that are all equal become 0.
        clip: bound of |c| after normalisation; None for none.
        keep_sign: tokens whose advantage would have another sign than A_i get 0 (`add`, `multiply`).
        region: the tokens whose scores are read.
    """

    combine: Literal["replace", "add", "multiply"] = "replace"
    scale: Annotated[NonNegativeFloat, "a factor"] = 1.0
    normalize: Literal["none", "row", "group"] = "none"
    clip: Annotated[Positive, "the bound of a score's size"] | None = None
    keep_sign: bool = False
    region: Region = "response"

    signed = True

    @property
    def reads_groups(self) -> bool:
        return self.normalize == "group"

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        mask = region_mask(rollouts, self.region)
        advantages = group_advantages_of(rollouts)[:, None].double()
        usable = (scores.isfinite() | ~mask).all(1, keepdim=True)
        c = self._bounded(scores.double().masked_fill(~(mask & usable), 0.0), mask & usable, rollouts.group_size)
        if self.combine == "replace":
            out = self.scale * c
        elif self.combine == "add":
            out = advantages + self.scale * c
        else:
            out = advantages * (1 + self.scale * advantages.sign() * c)
        if self.keep_sign:
            out = torch.where(out * advantages < 0, torch.zeros_like(out), out)
        return shaped(scores, torch.where(usable, out, advantages.expand_as(out)), rollouts)

    @property
    def replaces(self) -> bool:
        return self.combine == "replace"

    def _bounded(self, c: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], group_size: int) -> Float[Tensor, "B S"]:
        if self.normalize != "none":
            size = 1 if self.normalize == "row" else group_size
            spread = centred_and_std(c, mask, size)[1].flatten().repeat_interleave(size)[:, None]
            c = torch.where(spread > 0, c / spread.clamp(min=1e-12), torch.zeros_like(c))
        return c if self.clip is None else c.clamp(-self.clip, self.clip)

    def metrics(self, credit: Credit, mask: Bool[Tensor, "B S"]) -> Sums:
        """saturated_frac: fraction of tokens whose score lies at or beyond `clip`, where that is set without `normalize`."""
        if self.clip is None or self.normalize != "none":
            return {}
        return {"credit/saturated_frac": sum_and_count(((credit.importance.abs() >= self.clip) & mask).sum(1) / mask.sum(1))}
