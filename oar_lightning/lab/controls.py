"""Scorers that need no idea of credit: what an estimator has to beat. They can be trained with, like any other."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.located import located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import CausalSpans, MathProblem, Rollouts


@checked("scorer")
class Improbability(PredictionScorer):
    """1 - p of each token: how far it could have been another, whatever came of it."""

    def __init__(self, token_budget: SomeTokens = PASS_TOKENS, region: Region = "reasoning") -> None:
        super().__init__(token_budget, region)

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        logprobs = self.predictions(model, rollouts).logprobs
        return (-logprobs.clamp(max=0).expm1()).masked_fill(~region_mask(rollouts, self.covers), 0.0)


class IsDigit(Scorer):
    """1 on reasoning tokens that hold a digit."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        return (located(rollouts, _digits, "IsDigit").tokens & rollouts.reasoning_mask).float()


def _digits(problem: MathProblem, text: str) -> CausalSpans:
    return CausalSpans(tuple((i, i + 1) for i, c in enumerate(text) if c.isdigit()), True)
