"""Distances of a group's spans."""

from __future__ import annotations

from dataclasses import replace

import torch

from oar_lightning.credit.scorers.forward_free import Shear
from oar_lightning.credit.scorers.forward_free.shear import BLOCK
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.scoring.base import (
    Batch,
    DryRunInputs,
    changed,
    dry_run_inputs,
    most_tokens,
    prompt_and_completion,
    row_tokens,
)
from oar_lightning.policy.token_budget import TokenBudget

row_tokens.register(Shear)(prompt_and_completion)


@most_tokens.register
def _group(scorer: Shear, batch: Batch) -> int:
    """A pass holds one group at most, and a block of distances one side of it."""
    return max(batch.group_size * batch.length, 2 * min(batch.group_size * batch.completion, BLOCK))


@dry_run_inputs.register
def _group_inputs(scorer: Shear, batch: Batch, budget: int) -> DryRunInputs:
    """One group, half of it right: its states are kept while the distances are found. Iterations of a transport hold the same
    one after the other."""
    texts = completions(batch.group_size, batch.group_size, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    outcome = torch.arange(batch.group_size) % 2 * 2.0 - 1
    iterations = min(scorer.iterations, 2)
    bounded = changed(scorer, token_budget=TokenBudget("scorer.token_budget", budget), iterations=iterations)
    return DryRunInputs(bounded, replace(texts, advantages=outcome))
