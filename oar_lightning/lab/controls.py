"""Scores that need no idea of credit: what an estimator has to beat. Plain functions, usable as `scorer` like any other."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.predictions import predictions
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 4096
"""Padded tokens of a pass."""


def improbability(model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
    """1 - p of each reasoning token: how far it could have been another, whatever came of it."""
    mask = rollouts.reasoning_mask
    logprobs = predictions(model, rollouts, mask, TokenBudget("scorer.token_budget", TOKENS, TOKENS)).logprobs
    return (-logprobs.clamp(max=0).expm1()).masked_fill(~mask, 0.0)


def is_digit(model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
    """1 on reasoning tokens that hold a digit.

    Raises:
        ValueError: for rollouts without texts.
    """
    if not rollouts.token_spans:
        raise ValueError("is_digit reads the text of completions, and these rollouts have none; use another scorer")
    scores = torch.zeros(rollouts.token_ids.shape)
    for row, (text, spans) in enumerate(zip(rollouts.completions, rollouts.token_spans, strict=True)):
        has = [float(any(c.isdigit() for c in text[start:end])) for start, end in spans]
        scores[row, rollouts.response_mask[row].cpu()] = torch.tensor(has)
    return scores.to(rollouts.token_ids.device) * rollouts.reasoning_mask
