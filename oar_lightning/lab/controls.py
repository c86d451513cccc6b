"""Scorers that need no idea of credit: what an estimator has to beat. They can be trained with, like any other."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.forward_free.base import TOKENS, PredictionScorer
from oar_lightning.types import Rollouts


class Improbability(PredictionScorer):
    """1 - p of each token: how far it could have been another, whatever came of it."""

    def __init__(self, token_budget: int | Literal["auto"] = TOKENS, region: Region = "reasoning") -> None:
        super().__init__(token_budget, region)

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        logprobs = self.predictions(model, rollouts).logprobs
        return (-logprobs.clamp(max=0).expm1()).masked_fill(~region_mask(rollouts, self.covers), 0.0)


class IsDigit(Scorer):
    """1 on reasoning tokens that hold a digit."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        if not rollouts.token_spans:
            raise ValueError("IsDigit reads the text of completions, and these rollouts have none; use another scorer")
        scores = torch.zeros(rollouts.token_ids.shape)
        for row, (text, spans) in enumerate(zip(rollouts.completions, rollouts.token_spans, strict=True)):
            has = [float(any(c.isdigit() for c in text[start:end])) for start, end in spans]
            scores[row, rollouts.response_mask[row].cpu()] = torch.tensor(has)
        return scores.to(rollouts.token_ids.device) * rollouts.reasoning_mask
