"""Completions read again after second prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from oar_lightning.credit.scorers.hindsight import Rlsd
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.scoring.base import Batch, DryRunInputs, changed, dry_run_inputs, row_tokens
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import MathProblem, Rollouts

WORDS = 16
"""Tokens of the words around a hint."""


@row_tokens.register
def _hinted_completion(scorer: Rlsd, batch: Batch) -> int:
    """A reference solution counts as much as the longest completion."""
    return batch.length + WORDS + (batch.answer if scorer.hint in ("answer", "feedback") else batch.completion)


@dry_run_inputs.register
def _hindsight_inputs(scorer: Rlsd, batch: Batch, budget: int) -> DryRunInputs:
    """Completions that fill a pass without hints, and thus one with hints, too."""
    hint, rows = _hinted_completion(scorer, batch) - batch.length, min(batch.rows, max(1, budget // batch.length))

    def reprompt(texts: Rollouts, questions: Sequence[str]) -> Rollouts:
        told = torch.ones(len(texts), hint, dtype=torch.bool)
        wider: dict[str, Any] = {
            name: torch.cat([told if name == "attention_mask" else ~told, getattr(texts, name)], 1)
            for name in ("attention_mask", "response_mask", "reasoning_mask", "answer_mask")
        }
        return replace(texts, token_ids=torch.cat([torch.zeros(told.shape, dtype=torch.long), texts.token_ids], 1), **wider)

    texts = replace(
        completions(rows, batch.group_size, batch.prompt, batch.completion, batch.answer, batch.conclusion),
        advantages=torch.where(torch.arange(rows) % 2 == 0, -1.0, 1.0),
        problems=(MathProblem("", "0", "0"),) * rows,
        completions=("",) * rows,
        answers=("0",) * rows,
    )
    bounded = changed(scorer, token_budget=TokenBudget("scorer.token_budget", budget), _reprompt=reprompt)
    return DryRunInputs(bounded, texts)
