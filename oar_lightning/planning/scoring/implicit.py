"""Scorers that train a model of their own."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.implicit import ImplicitRewards
from oar_lightning.planning.memory import Item
from oar_lightning.planning.policy import PolicySize
from oar_lightning.planning.scoring.base import (
    Batch,
    DryRunInputs,
    changed,
    dry_run_inputs,
    full_pass,
    innermost,
    prompt_and_completion,
    row_tokens,
)
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

STATES = 2
"""Numbers that AdamW keeps of each parameter."""

row_tokens.register(ImplicitRewards)(prompt_and_completion)


class _Learning(Scorer):
    """The largest pass: forward and backward, with the gradients of one pass. The policy stands for the copy of it."""

    covers = "response"

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        model.train()
        masks = rollouts.attention_mask, rollouts.response_mask
        with torch.enable_grad():
            logprobs = token_logprobs(model, rollouts.token_ids, *masks, entropy_grad=None)[0]
            torch.autograd.grad(logprobs.sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        model.eval()
        return logprobs.detach()


@dry_run_inputs.register
def _learning_inputs(scorer: ImplicitRewards, batch: Batch, budget: int) -> DryRunInputs:
    texts = full_pass(scorer, batch, budget).texts
    return DryRunInputs(changed(_Learning(), token_budget=TokenBudget("scorer.token_budget", budget)), texts)


def own_model_items(scorer: Scorer, size: PolicySize) -> list[Item]:
    """What a scorer's own model holds beside its passes. Weights of 16 bits have float32 ones that the optimizer moves."""
    if not isinstance(innermost(scorer), ImplicitRewards):
        return []
    half = size.trained_bytes < 4 * size.trained
    moved = 4.0 * size.trained if half else float(size.trained_bytes)
    return [
        Item("scorer's model", size.trained_bytes + moved * half),
        Item("scorer's optimizer states", STATES * moved),
        Item("scorer's gradients", moved, ("scoring",)),
    ]
