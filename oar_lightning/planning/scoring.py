"""Inputs for dry runs of scorers: as many completions as fill one pass of each kind that a scorer makes."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from oar_lightning.credit.scorers import (
    Entropy,
    Inverted,
    OarG,
    OarP,
    OarPApproximate,
    Oracle,
    Position,
    Random,
    Scorer,
    Shuffled,
    Spans,
    Uniform,
)
from oar_lightning.credit.scorers.oar_p.coarse import CoarseStage, Estimate
from oar_lightning.credit.scorers.oar_p.counterfactual import PADDING, PREFIX_DISCOUNT, Counterfactuals
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.planning.config import LEAST_BUDGET, TRACED_TOKENS
from oar_lightning.planning.dry_run import completions
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

FREE = (Uniform, Random, Position, Oracle)
"""Scorers that do not run the policy."""


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
    least = LEAST_BUDGET if isinstance(_innermost(scorer), OarP) else row
    budgets = sorted({min(tokens, most) for tokens in (least, budget, row, several) if least <= tokens <= several})
    # two budgets that are nearly equal give no usable slope
    return [a for a, b in itertools.pairwise(budgets) if b > 1.2 * a] + budgets[-1:]


@singledispatch
def dry_run_inputs(scorer: Scorer, batch: Batch, budget: int) -> DryRunInputs:
    """The scorer with another budget, and completions that fill one pass."""
    return _full_pass(scorer, batch, budget)


def _full_pass(scorer: Scorer, batch: Batch, budget: int) -> DryRunInputs:
    tokens = row_tokens(scorer, batch)
    assert tokens is not None
    rows = min(batch.rows, max(1, budget // tokens))
    texts = completions(rows, batch.group_size, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    return DryRunInputs(_with(scorer, token_budget=TokenBudget("scorer.token_budget", budget)), texts)


@row_tokens.register(OarP)
@row_tokens.register(Entropy)
def _prompt_and_completion(scorer: OarP | Entropy, batch: Batch) -> int:
    return batch.length


@row_tokens.register
def _completion(scorer: OarG, batch: Batch) -> int:
    return batch.completion - 1  # the last token's state is not read


@most_tokens.register
def _copies(scorer: OarG, batch: Batch) -> int:
    twice_drawn = min(scorer.stability_rows, max(1, batch.rows // 8)) if scorer.num_draws == 1 else 0
    return (batch.rows * scorer.num_draws + twice_drawn) * _completion(scorer, batch)


@most_tokens.register
def _counterfactuals(scorer: OarP, batch: Batch) -> int:
    """A pass holds suffixes of similar length: PADDING + 1 of each text, or all that count as S / PREFIX_DISCOUNT tokens."""
    return batch.rows * batch.length * max(PADDING + 1, batch.length // PREFIX_DISCOUNT**2)


@most_tokens.register(Shuffled)
@most_tokens.register(Inverted)
def _inner_most_tokens(scorer: Shuffled | Inverted, batch: Batch) -> int:
    return most_tokens(scorer.inner, batch)


@row_tokens.register(Shuffled)
@row_tokens.register(Inverted)
def _inner_row_tokens(scorer: Shuffled | Inverted, batch: Batch) -> int | None:
    return row_tokens(scorer.inner, batch)


@dry_run_inputs.register(Shuffled)
@dry_run_inputs.register(Inverted)
def _inner_inputs(scorer: Shuffled | Inverted, batch: Batch, budget: int) -> DryRunInputs:
    inner, texts = dry_run_inputs(scorer.inner, batch, budget)
    return DryRunInputs(_with(scorer, inner=inner), texts)


@dry_run_inputs.register
def _oar_g_inputs(scorer: OarG, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass, and the prompts of all others: OAR-G reads all prompts first and keeps their pasts."""
    full = _full_pass(scorer, batch, budget)
    problems = -(-len(full.texts) // batch.group_size)
    others = completions(batch.problems - problems, 1, batch.prompt, batch.completion)
    return full._replace(texts=_with_unscored(full.texts, others, problems))


@dry_run_inputs.register
def _oar_p_inputs(scorer: OarP, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass, of which only the columns with the largest passes are masked."""
    full = _full_pass(scorer, batch, budget)
    wanted = full.texts.reasoning_mask & _largest_columns(full.texts, budget)
    return full._replace(texts=replace(full.texts, reasoning_mask=wanted))


@dry_run_inputs.register
def _oar_p_approximate_inputs(scorer: OarPApproximate, batch: Batch, budget: int) -> DryRunInputs:
    if isinstance(scorer.coarse, Spans):
        return _oar_p_inputs(scorer, batch, budget)
    return _full_pass(_with(scorer, coarse=_MadeUpEstimates(scorer.coarse)), batch, budget)


@dataclass(frozen=True)
class _MadeUpEstimates:
    """A coarse stage with made-up estimates: a dry run's have no values, but they decide what is scored exactly."""

    coarse: CoarseStage

    @property
    def late_share(self) -> float:
        return self.coarse.late_share

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts) -> Estimate:
        estimate = self.coarse.estimate(counterfactuals, texts)
        scores = 0.618 * torch.arange(texts.token_ids.shape[1]) % 1  # neither rising nor falling along the text
        return estimate._replace(scores=scores.expand(texts.token_ids.shape).contiguous())


def _largest_columns(texts: Rollouts, budget: int) -> Bool[Tensor, " S"]:
    """Columns to mask whose counterfactuals make the passes with the most memory.

    A counterfactual that runs `w` of `S` tokens counts max(w, S / PREFIX_DISCOUNT) in the budget. The last columns make the
    most copies of the longest prefixes. Columns at w = S / PREFIX_DISCOUNT make the most copies that run tokens. Where the
    budget is less than a text, the longest suffix takes most. Suffixes that differ by at most PADDING are in one pass; where
    they do not fill the budget, longer ones take more.
    """
    end = texts.token_ids.shape[1] - 1
    width = end - torch.arange(end + 1)
    shortest = -(-end // PREFIX_DISCOUNT)
    scored = texts.reasoning_mask.any(0).nonzero()
    last, longest = end - int(scored.max()), end - int(scored.min())
    of_text = -(-budget // len(texts))  # tokens for each text in a pass that holds all texts
    full = of_text // shortest + 1 + PADDING
    few = min(PADDING, of_text // end) + 1
    filling = min(longest, max(shortest, of_text // (PADDING + 1)))
    return (
        (width < last + full)
        | ((width > shortest - full) & (width <= shortest))
        | ((width > filling - 1 - PADDING) & (width <= filling))
        | (width > longest - few)
    )


def _with_unscored(texts: Rollouts, others: Rollouts, first_prompt: int) -> Rollouts:
    """The texts with additional rows that have no answer, whose prompts are numbered from `first_prompt` on."""
    ids = others.token_ids.clone()
    ids[:, 0] += first_prompt
    nothing = torch.zeros_like(others.answer_mask)
    return replace(
        texts,
        token_ids=torch.cat([texts.token_ids, ids]),
        attention_mask=torch.cat([texts.attention_mask, others.attention_mask]),
        response_mask=torch.cat([texts.response_mask, others.response_mask]),
        reasoning_mask=torch.cat([texts.reasoning_mask, nothing]),
        answer_mask=torch.cat([texts.answer_mask, nothing]),
        reward_terms=torch.cat([texts.reward_terms, others.reward_terms]),
        rewards=torch.cat([texts.rewards, others.rewards]),
    )


def _with(scorer: Scorer, **settings: object) -> Scorer:
    changed = copy.copy(scorer)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def scorer_budget(scorer: Scorer) -> int | None:
    """The scorer's token budget, or its inner scorer's."""
    return next((budget.tokens for budget in scorer.budgets), None)


def _innermost(scorer: Scorer) -> Scorer:
    return _innermost(scorer.inner) if isinstance(scorer, Shuffled | Inverted) else scorer
