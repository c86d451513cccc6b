"""Completions read again after second prompts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.hindsight import Contrast, Rlsd
from oar_lightning.credit.scorers.hindsight.base import Hindsight
from oar_lightning.credit.teachers import GivenTeacher, LaggedPolicy, PolicyItself, Teacher
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.empty import no_memory
from oar_lightning.planning.memory import Item
from oar_lightning.planning.policy import PolicySize, policy_size, policy_without_weights
from oar_lightning.planning.scoring.base import Batch, DryRunInputs, changed, dry_run_inputs, innermost, most_tokens, row_tokens
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import MathProblem, Rollouts

WORDS = 16
"""Tokens of the words around a hint."""

OF_BOTH = 4
"""Completions of the least group in which each has another one of either outcome."""


@row_tokens.register
def _hinted_completion(scorer: Hindsight, batch: Batch) -> int:
    """A reference solution counts as much as the longest completion."""
    short = isinstance(scorer, Rlsd) and scorer.hint in ("answer", "feedback")
    return batch.length + WORDS + (batch.answer if short else batch.completion)


@most_tokens.register
def _all_hints(scorer: Hindsight, batch: Batch) -> int:
    hints = 1 + scorer.samples if isinstance(scorer, Contrast) else 1
    return batch.rows * hints * _hinted_completion(scorer, batch)


@dry_run_inputs.register
def _hindsight_inputs(scorer: Hindsight, batch: Batch, budget: int) -> DryRunInputs:
    """Completions that fill a pass without hints, and thus one with hints, too. They are one group, so that each has others
    to be told."""
    hint, fill = _hinted_completion(scorer, batch) - batch.length, max(1, budget // batch.length)
    rows = max(min(batch.rows, fill), OF_BOTH)

    def reprompt(texts: Rollouts, questions: Sequence[str]) -> Rollouts:
        told = torch.ones(len(texts), hint, dtype=torch.bool)
        wider: dict[str, Any] = {
            name: torch.cat([told if name == "attention_mask" else ~told, getattr(texts, name)], 1)
            for name in ("attention_mask", "response_mask", "reasoning_mask", "answer_mask")
        }
        return replace(texts, token_ids=torch.cat([torch.zeros(told.shape, dtype=torch.long), texts.token_ids], 1), **wider)

    texts = replace(
        completions(rows, rows, batch.prompt, batch.completion, batch.answer, batch.conclusion),
        advantages=torch.arange(rows) % 2 * 2.0 - 1,
        problems=(MathProblem("", "0", "0"),) * rows,
        completions=("",) * rows,
        answers=("0",) * rows,
    )
    teacher = _without_weights(scorer.teacher)
    bounded = changed(scorer, token_budget=TokenBudget("scorer.token_budget", budget), _reprompt=reprompt, teacher=teacher)
    return DryRunInputs(bounded, texts)


def teacher_items(scorer: Scorer, size: PolicySize) -> list[Item]:
    """What the one that reads hints holds in all phases, beside its passes, given the policy's size."""
    inner = innermost(scorer)
    if not isinstance(inner, Hindsight):
        return []
    if isinstance(inner.teacher, LaggedPolicy):
        return [Item("teacher's weights", float(size.trained_bytes))]
    stand_in = _without_weights(inner.teacher)
    return [Item("teacher's weights", float(policy_size(stand_in.model).bytes))] if isinstance(stand_in, GivenTeacher) else []


def _without_weights(teacher: Teacher) -> Teacher:
    """A teacher for a dry run. The policy stands for a copy of it."""
    if not isinstance(teacher, GivenTeacher):
        return PolicyItself()
    stand_in = copy.copy(teacher)
    with no_memory():
        stand_in.model = policy_without_weights(teacher.spec)
    return stand_in
