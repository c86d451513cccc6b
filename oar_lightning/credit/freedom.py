"""Freedom: how far a token could have been another. What cannot change earns no credit, however much depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Probability
from oar_lightning.credit.predictions import passes, predictions
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

Mode = Literal["none", "weight", "mask"]
FREE_BELOW = 0.98
"""The default of `Freedom.free_below`."""


@dataclass(frozen=True)
class Freedom:
    """Scores of influence, made scores of influence by choice.

    Args:
        mode: `none` leaves scores as they are, `weight` multiplies each by 1 - p, the probability that the token had been
            another, `mask` sets those of tokens that are not free to 0.
        free_below: tokens of a smaller probability are free.
    """

    mode: Mode = "none"
    free_below: Probability = FREE_BELOW

    @property
    def idle(self) -> dict[str, str]:
        """See `Component.idle`."""
        unread = self.mode != "mask" and self.free_below != FREE_BELOW
        return {f"free_below={self.free_below:g}": f"scorer.freedom={self.mode}"} if unread else {}

    def of_logprobs(self, scores: Tensor, logprobs: Tensor) -> Tensor:
        """The scores of tokens with these log-probabilities; any shape."""
        if self.mode == "none":
            return scores
        if self.mode == "mask":
            return scores.masked_fill(logprobs.exp() >= self.free_below, 0.0)
        return scores * -logprobs.clamp(max=0).expm1().to(scores.dtype)

    @torch.no_grad()
    def __call__(
        self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"], token_budget: TokenBudget
    ) -> tuple[Float[Tensor, "B S"], float]:
        """The scores of reasoning tokens, and the forward passes of the batch that their probabilities took: 0 where sampling
        kept its states."""
        if self.mode == "none" or not len(rollouts):
            return scores, 0.0
        logprobs = predictions(model, rollouts, rollouts.reasoning_mask, token_budget).logprobs
        return self.of_logprobs(scores, logprobs), passes(rollouts)
