"""What is asked of each family of scorers, and what they share."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, fields, replace
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.scorers import AnchorStates, Capo, Entropy, Oracle, Position, Random, Scorer, Spro, Uniform
from oar_lightning.credit.scorers.base import Wrapper
from oar_lightning.credit.scorers.forward_free import Hicra, Ktae
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer
from oar_lightning.credit.scorers.hindsight import ActionMask
from oar_lightning.credit.scorers.oar_p.base import CounterfactualScorer
from oar_lightning.planning.config import LEAST_BUDGET, TRACED_TOKENS
from oar_lightning.planning.dry_run import completions
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

FREE = (AnchorStates, Uniform, Random, Position, Oracle, ActionMask, Hicra, Ktae, Spro, Capo)
"""Scorers that do not run the policy themselves."""


@dataclass(frozen=True)
class Batch:
    """A batch of rollouts of one rank, in which every completion has the greatest length: tokens of a prompt, a completion,
    its answer and its conclusion."""

    prompt: int
    completion: int
    answer: int
    conclusion: int
    group_size: int
    problems: int

    @property
    def length(self) -> int:
        return self.prompt + self.completion

    @property
    def rows(self) -> int:
        return self.problems * self.group_size


class DryRunInputs(NamedTuple):
    """A scorer and completions with which its peak memory is that of a whole batch of rollouts."""

    scorer: Scorer
    texts: Rollouts


@singledispatch
def row_tokens(scorer: Scorer, batch: Batch) -> int | None:
    """Tokens that one completion counts in `scorer.token_budget`; None for an unknown scorer."""
    return None


@singledispatch
def most_tokens(scorer: Scorer, batch: Batch) -> int:
    """The token budget with which one pass holds all that is scored; a larger budget changes nothing."""
    return batch.rows * (row_tokens(scorer, batch) or 0)


def dry_run_budgets(scorer: Scorer, batch: Batch, budget: int) -> list[int]:
    """The token budgets of the dry runs: the least, `budget`, that of one completion, and that of several. Costs are nearly
    linear between them."""
    row, most = row_tokens(scorer, batch) or 1, most_tokens(scorer, batch)
    several = max(2 * row, min(budget, TRACED_TOKENS))
    least = LEAST_BUDGET if isinstance(innermost(scorer), CounterfactualScorer) else row
    budgets = sorted({min(tokens, most) for tokens in (least, budget, row, several) if least <= tokens <= several})
    # two budgets that are nearly equal give no usable slope
    return [a for a, b in itertools.pairwise(budgets) if b > 1.2 * a] + budgets[-1:]


@singledispatch
def dry_run_inputs(scorer: Scorer, batch: Batch, budget: int) -> DryRunInputs:
    """The scorer with another budget, and completions that fill one pass."""
    return full_pass(scorer, batch, budget)


def full_pass(scorer: Scorer, batch: Batch, budget: int) -> DryRunInputs:
    tokens = row_tokens(scorer, batch)
    assert tokens is not None
    rows = min(batch.rows, max(1, budget // tokens))
    texts = completions(rows, batch.group_size, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    return DryRunInputs(changed(scorer, token_budget=TokenBudget("scorer.token_budget", budget)), texts)


@row_tokens.register(Entropy)
@row_tokens.register(PredictionScorer)
def prompt_and_completion(scorer: Scorer, batch: Batch) -> int:
    """A completion counts with its prompt."""
    return batch.length


class _Predictions(PredictionScorer):
    """What scorers of predictions run; what they make of the numbers of each token takes little beside it."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.predictions(model, rollouts).entropy


@dry_run_inputs.register
def _prediction_inputs(scorer: PredictionScorer, batch: Batch, budget: int) -> DryRunInputs:
    return full_pass(_Predictions(region=scorer.covers), batch, budget)


@row_tokens.register
def _inner_row_tokens(scorer: Wrapper, batch: Batch) -> int | None:
    return row_tokens(scorer.inner, batch)


@most_tokens.register
def _inner_most_tokens(scorer: Wrapper, batch: Batch) -> int:
    return most_tokens(scorer.inner, batch)


@dry_run_inputs.register
def _inner_inputs(scorer: Wrapper, batch: Batch, budget: int) -> DryRunInputs:
    inner, texts = dry_run_inputs(scorer.inner, batch, budget)
    return DryRunInputs(changed(scorer, inner=inner), texts)


def joined(texts: Rollouts, others: Rollouts, first_prompt: int) -> Rollouts:
    """The texts with additional rows, whose prompts are numbered from `first_prompt` on."""
    ids = others.token_ids.clone()
    ids[:, 0] += first_prompt
    others = replace(others, token_ids=ids)
    tensors = [f.name for f in fields(Rollouts) if isinstance(getattr(texts, f.name), torch.Tensor)]
    both: dict[str, Any] = {name: torch.cat([getattr(texts, name), getattr(others, name)]) for name in tensors}
    return replace(texts, **both)


def changed(scorer: Scorer, **settings: object) -> Scorer:
    """A copy with other settings."""
    out = copy.copy(scorer)
    for name, value in settings.items():
        setattr(out, name, value)
    return out


def scorer_budget(scorer: Scorer) -> int | None:
    """The scorer's token budget, or its inner scorer's."""
    return next((budget.tokens for budget in scorer.budgets), None)


def innermost(scorer: Scorer) -> Scorer:
    return innermost(scorer.inner) if isinstance(scorer, Wrapper) else scorer
