"""Gates that decide which tokens count in the loss, and how far their ratio may go."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, NonNegativeFloat, PositiveFraction, checked
from oar_lightning.common.shares import count_of
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.gates.base import Gate, weighted
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.types import Credit, Rollouts


@checked("gate")
@dataclass(frozen=True)
class SelectGate(Gate):
    """Keeps the tokens with the largest scores; the others of the region have no advantage.

    Completions without a group advantage are compared too, as in the authors' code.

    With scorer=entropy the "80/20" rule of arXiv 2506.01939. Ties at the threshold are kept, but where it falls
    among equal lowest scores, as with scores that are 0 but for a few, none of these is.

    Args:
        share: fraction of the region's tokens that is kept.
        over: the tokens of the whole `step` (all ranks) are compared, or those of each completion (`row`).
        denominator: what the loss is averaged over: the `kept` tokens (the authors' code) or `all` (TRL's
            `top_entropy_quantile`), whose steps are smaller by the share.
        region: the tokens that are compared; others are always kept.
    """

    share: Annotated[PositiveFraction, "the fraction of tokens that is kept"] = 0.2
    over: Literal["step", "row"] = "step"
    denominator: Literal["kept", "all"] = "kept"
    region: Region = "response"

    reads_all_rows = True

    @property
    def reads_step(self) -> bool:
        return self.over == "step"

    @property
    def uniform(self) -> bool:
        return self.share == 1

    @property
    def masks_loss(self) -> bool:
        return self.denominator == "kept"

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        mask = region_mask(rollouts, self.region)
        unusable = (mask & scores.isnan()).any(1, keepdim=True)  # such completions are neither compared nor cut
        mask = mask & ~unusable
        kept = ~mask | (scores >= thresholds(scores, mask, self.share, self.over))
        credit = weighted(scores, kept.to(scores.dtype), rollouts)
        return credit if self.denominator == "all" else dataclasses.replace(credit, loss_mask=kept & rollouts.response_mask)


@checked("gate")
@dataclass(frozen=True)
class ClipGate(Gate):
    """Other clip bounds and KL factor for each completion's tokens with large scores (Archer, arXiv 2507.15778).

    Archer's scores are entropies: free tokens may move further and are not tied to the reference. Advantages stay.

    Args:
        share: fraction of a completion's tokens in the region that count as large; ties as in `SelectGate`.
        clip_low, clip_high: of these tokens; the others have `loss.clip_low` and `loss.clip_high`.
        kl_factor: times `loss.kl_coef` for these tokens.
        region: the tokens that are compared.
    """

    share: Annotated[PositiveFraction, "a fraction of a completion's tokens"] = 0.2
    clip_low: Annotated[Fraction, "1 minus the ratio's lower bound"] = 0.5
    clip_high: NonNegativeFloat = 0.5
    kl_factor: NonNegativeFloat = 0.0
    region: Region = "response"

    reads_all_rows = True  # completions without an advantage have a KL term

    @property
    def uniform(self) -> bool:
        return True

    @property
    def clips(self) -> bool:
        return True

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        mask = region_mask(rollouts, self.region)
        large = mask & (scores >= thresholds(scores, mask, self.share, "row"))
        credit = weighted(scores, torch.ones_like(scores), rollouts)
        other = torch.full_like(scores, torch.nan)
        return dataclasses.replace(
            credit,
            clip_low=other.masked_fill(large, self.clip_low),
            clip_high=other.masked_fill(large, self.clip_high),
            kl_factor=torch.ones_like(scores).masked_fill(large, self.kl_factor),
        )


def thresholds(
    scores: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], share: float, over: Literal["step", "row"]
) -> Float[Tensor, "B 1"]:
    """The score of the last of the ceil(share * n) largest masked tokens, of all rows (and ranks) or of each row; where more
    have it and it is the lowest, the next one, if there is any.

    Not a number counts as the smallest score. A row without tokens gets infinity.
    """
    if over == "row":
        return _of_rows(scores, mask, share)
    of_all = torch.cat([part.to(scores.device) for part in all_gather(scores[mask].cpu())])[None]
    return _of_rows(of_all, torch.ones_like(of_all, dtype=torch.bool), share).expand(len(scores), 1)


def _of_rows(scores: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], share: float) -> Float[Tensor, "B 1"]:
    counts = mask.sum(1)
    if not scores.shape[1]:
        return scores.new_full((len(scores), 1), torch.inf)
    values = scores.nan_to_num(nan=-torch.inf).masked_fill(~mask, -torch.inf)
    last = torch.tensor([max(1, count_of(share, n)) - 1 for n in counts.tolist()], device=scores.device)[:, None]
    found = values.sort(1, descending=True).values.gather(1, last)
    lowest = values.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    larger = values > lowest
    tied = (found == lowest) & (last + 1 < counts[:, None]) & larger.any(1, keepdim=True)
    found = torch.where(tied, values.masked_fill(~larger, torch.inf).amin(1, keepdim=True), found)
    return found.masked_fill(counts[:, None] == 0, torch.inf)
