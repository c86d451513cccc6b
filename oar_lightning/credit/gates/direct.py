"""Scores that are weights already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, NonNegativeFloat, PositiveInt, Rule, checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.gates.base import Gate, Mass, weighted
from oar_lightning.credit.gates.bilevel import invalid_rows, preserve_mass
from oar_lightning.objective.diagnostics import sum_and_count
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.types import AFTER_WARMUP, Credit, Rollouts


@checked(
    "gate",
    Rule(
        lambda low, high: low < high,
        "gate.low and gate.high bound a score: 0 <= low < high, got low={low}, high={high}",
    ),
)
@dataclass(frozen=True)
class DirectGate(Gate):
    """A_it = A_i w_it with w = (1 - strength) + strength * clip(I, low, high); weight 1 outside the region.

    The form of RLSD (arXiv 2604.03128) and of most published token weights. A completion with scores that are not
    usable keeps weight 1 (see `bilevel.invalid_rows`).

    Args:
        strength: how far weights leave 1, in [0, 1].
        strength_steps: rollout steps over which `strength` falls linearly to 0; None keeps it.
        low: lower bound of a score, >= 0.
        high: upper bound of a score.
        preserve_mass: scale a completion's weights to sum to its number of tokens in the region.
        region: the tokens that are weighted.
    """

    strength: Annotated[Fraction, "the share of the scores beside the weight 1"] = 1.0
    strength_steps: PositiveInt | None = None
    low: NonNegativeFloat = 0.0
    high: float = float("inf")
    preserve_mass: bool = False
    region: Region = "response"

    @property
    def mass(self) -> Mass:
        return "kept" if self.preserve_mass else "free"

    def strength_at(self, step: int) -> float:
        """The strength at a rollout step, counted from 0; of completions that belong to no step the whole one."""
        if self.strength_steps is None or step >= AFTER_WARMUP:
            return self.strength
        return self.strength * max(0.0, 1 - step / self.strength_steps)

    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
        mask = region_mask(rollouts, self.region)
        strength = self.strength_at(rollouts.step)
        weights = (1 - strength) + strength * scores.double().clamp(self.low, self.high)
        if self.preserve_mass:
            weights = preserve_mass(weights, mask)
        usable = mask & ~invalid_rows(scores, mask)[:, None]
        return weighted(scores, torch.where(usable, weights, torch.ones_like(weights)), rollouts)

    def metrics(self, credit: Credit, mask: Bool[Tensor, "B S"]) -> Sums:
        """saturated_frac: fraction of tokens whose score lies at or beyond a bound."""
        beyond = ((credit.importance <= self.low) | (credit.importance >= self.high)) & mask
        return {"credit/saturated_frac": sum_and_count(beyond.sum(1) / mask.sum(1))}
