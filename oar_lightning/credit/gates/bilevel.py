"""The bi-level, mass-preserving gate from importance to token weights (OAR, arXiv 2601.07408)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, NonNegativeFloat, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.gates.base import Gate, Mass, weighted
from oar_lightning.objective.diagnostics import sum_and_count
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.types import Credit, Rollouts

EPS = 1e-8


@checked("gate")
@dataclass(frozen=True)
class BilevelGate(Gate):
    """A_it = A_i w_it with `gate_weights`: suppression below a threshold, boost above it, mass kept.

    Args:
        tau: threshold between suppression and boost; a quantile of the completion's normalised scores, or with
            `threshold=absolute` a value on their [0, 1] scale. Paper: 0.4; stable in 0.3..0.7.
        beta: slope of the boost, >= 0. Paper: 2.0.
        floor: smallest weight before renormalisation, in [0, 1].
        mode: `both` levels, `boost_only` (suppressed tokens keep 1), `suppress_only` (boosted tokens keep 1), `off` (all 1).
        renormalize: scale a completion's weights to sum to its number of tokens in the region.
        advantages: which completions are weighted, by the sign of their group advantage; tokens of the others keep weight 1.
            (Ours.) With one sign alone the pushes on a token need not balance over a group: a token that is boosted in wrong
            completions, but not in right ones, is unlearnt even if it is right.
        region: the tokens that are weighted; the others keep weight 1.
    """

    tau: Annotated[Fraction, "a quantile (with gate.threshold=absolute a normalised score)"] = 0.4
    beta: Annotated[NonNegativeFloat, "the slope of the boost"] = 2.0
    floor: Annotated[Fraction, "the smallest weight"] = 0.1
    mode: Literal["both", "boost_only", "suppress_only", "off"] = "both"
    threshold: Literal["quantile", "absolute"] = "quantile"
    renormalize: bool = True
    advantages: Literal["both", "positive", "negative"] = "both"
    region: Region = "reasoning"

    @property
    def idle(self) -> Mapping[str, str]:
        unread: dict[str, tuple[str, ...]] = {
            "boost_only": ("floor",),
            "suppress_only": ("beta",),
            "off": ("tau", "beta", "floor", "threshold", "renormalize", "advantages"),
        }
        chosen = [key for key in unread.get(self.mode, ()) if getattr(self, key) != getattr(type(self), key)]
        return {f"{key}={getattr(self, key)}": f"gate.mode={self.mode}" for key in chosen}

    @property
    def uniform(self) -> bool:
        return self.mode == "off"

    @property
    def mass(self) -> Mass:
        return "kept" if self.renormalize else "free"

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        if self.advantages != "both":  # scores that are all 0 rank no token above another
            group = group_advantages_of(rollouts)
            scores = scores.masked_fill((group <= 0 if self.advantages == "positive" else group >= 0)[:, None], 0.0)
        return weighted(scores, gate_weights(scores, region_mask(rollouts, self.region), self), rollouts)

    def metrics(self, credit: Credit, mask: Bool[Tensor, "B S"]) -> Sums:
        """floor_frac: fraction of tokens at the floor; boost_frac: above the threshold, so with a weight over 1 before
        renormalisation."""
        raw = gate_weights(credit.importance, mask, dataclasses.replace(self, renormalize=False))
        at_floor = (raw <= self.floor) & mask if self.mode in ("both", "suppress_only") else torch.zeros_like(mask)
        count = mask.sum(1)
        return {
            "credit/floor_frac": sum_and_count(at_floor.sum(1) / count),
            "credit/boost_frac": sum_and_count(((raw > 1) & mask).sum(1) / count),
        }


def gate_weights(
    importance: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], gate: BilevelGate = BilevelGate()
) -> Float[Tensor, "B S"]:
    """Token weights from importance, row by row over `mask`; exactly 1 outside it.

    x = minmax(log1p(I)) (constant scores -> 0); theta = quantile(x, tau);
    w = max(x / (theta + 1e-8), floor) where x < theta, else 1 + beta (x - theta) / (1 - theta + 1e-8);
    then w *= n / sum(w), n = tokens in the mask. Weights are dimensionless. A row without usable scores keeps
    weight 1 (see `invalid_rows`).
    """
    if gate.mode == "off":
        return torch.ones_like(importance)
    # in double: float32 alone would lose the last digits of steep boosts
    x = normalize_scores(importance.double(), mask)
    if gate.threshold == "quantile":
        theta = masked_quantile(x, mask, gate.tau)
    else:  # threshold 0 gives a row of constant scores, which ranks no token above another, weight 1 everywhere
        theta = gate.tau * (x.amax(1, keepdim=True) > 0).to(x.dtype)
    suppressed = (x / (theta + EPS)).clamp(min=gate.floor)
    boosted = 1 + gate.beta * (x - theta) / (1 - theta + EPS)
    if gate.mode == "boost_only":
        suppressed = torch.ones_like(x)
    elif gate.mode == "suppress_only":
        boosted = torch.ones_like(x)
    weights = torch.where(x < theta, suppressed, boosted)
    if gate.renormalize:
        weights = preserve_mass(weights, mask)
    usable = mask & ~invalid_rows(importance, mask)[:, None]
    return torch.where(usable, weights, torch.ones_like(weights)).to(torch.promote_types(importance.dtype, torch.float32))


def normalize_scores(importance: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """Min-max normalised log1p(I) in [0, 1] over the row's mask, 0 outside; constant or invalid scores -> 0."""
    usable = mask & ~invalid_rows(importance, mask)[:, None]
    x = torch.log1p(importance.masked_fill(~usable, 0.0))
    low = x.masked_fill(~usable, torch.inf).amin(1, keepdim=True)
    high = x.masked_fill(~usable, -torch.inf).amax(1, keepdim=True)
    span = high - low
    return ((x - low) / span.masked_fill(span <= 0, 1.0)).masked_fill(~usable, 0.0)


def masked_quantile(x: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], q: float) -> Float[Tensor, "B 1"]:
    """The q-quantile of each row's masked entries, linear between order statistics; 0 for an empty row."""
    ordered = x.masked_fill(~mask, torch.inf).sort(1).values
    count = mask.sum(1, keepdim=True)
    position = (count - 1).clamp(min=0).to(torch.float64) * q
    below = position.floor().long()
    above = torch.minimum(below + 1, (count - 1).clamp(min=0))
    low, high = ordered.gather(1, below), ordered.gather(1, above)
    value = low + (high - low) * (position - below).to(x.dtype)
    return torch.where(count > 0, value, torch.zeros_like(value))


def preserve_mass(weights: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """w * n / (sum(w) + 1e-8) over the row's mask, so that weights sum to the token count; a zero sum gives ones."""
    count = mask.sum(1, keepdim=True).to(weights.dtype)
    total = weights.masked_fill(~mask, 0.0).sum(1, keepdim=True)
    return torch.where(total > 0, weights * (count / (total + EPS)), torch.ones_like(weights))


def invalid_rows(importance: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Bool[Tensor, " B"]:
    """Rows without usable importance, which is finite and >= 0: one score in the mask is NaN, infinite or <= -1 (log1p
    undefined), or all are negative. A few scores a little below 0, as rounding makes them, are usable."""
    unusable = (mask & ~(importance.isfinite() & (importance > -1))).any(1)
    return unusable | (mask.any(1) & ~(mask & ~(importance < 0)).any(1))
