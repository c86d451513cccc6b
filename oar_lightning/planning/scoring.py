"""How scorers are rehearsed: completions enough for one full batch of each kind that they make."""

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
    """The completions of one rank, all as long as they may be: tokens of prompts, completions, answers and what leads up to
    these."""

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


class Rehearsal(NamedTuple):
    """A scorer and completions that make it hold as much as a whole batch of rollouts does."""

    scorer: Scorer
    texts: Rollouts


@singledispatch
def row_tokens(scorer: Scorer, batch: Batch) -> int | None:
    """What a completion counts in `scorer.token_budget`; None for a scorer of which nothing is known here."""
    return None


@singledispatch
def most_tokens(scorer: Scorer, batch: Batch) -> int:
    """The token budget from which on more is no more: all that is scored is in one batch."""
    return batch.rows * (row_tokens(scorer, batch) or 0)


def rehearsed_budgets(scorer: Scorer, batch: Batch, budget: int) -> list[int]:
    """The token budgets to rehearse with: least, asked for, one completion, several; costs are nearly straight between."""
    row, most = row_tokens(scorer, batch) or 1, most_tokens(scorer, batch)
    several = max(2 * row, min(budget, TRACED_TOKENS))
    least = LEAST_BUDGET if isinstance(_innermost(scorer), OarP) else row
    found = sorted({min(tokens, most) for tokens in (least, budget, row, several) if least <= tokens <= several})
    return [a for a, b in itertools.pairwise(found) if b > 1.2 * a] + found[-1:]  # no slope from two that are one


@singledispatch
def rehearsal(scorer: Scorer, batch: Batch, budget: int) -> Rehearsal:
    """The scorer with another budget, and one full batch of completions."""
    return _full_batch(scorer, batch, budget)


def _full_batch(scorer: Scorer, batch: Batch, budget: int) -> Rehearsal:
    tokens = row_tokens(scorer, batch)
    assert tokens is not None
    rows = min(batch.rows, max(1, budget // tokens))
    texts = completions(rows, batch.group_size, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    return Rehearsal(_with(scorer, token_budget=TokenBudget("scorer.token_budget", budget)), texts)


@row_tokens.register(OarP)
@row_tokens.register(Entropy)
def _whole(scorer: OarP | Entropy, batch: Batch) -> int:
    return batch.length


@row_tokens.register
def _own(scorer: OarG, batch: Batch) -> int:
    return batch.completion - 1  # nothing is read off the last token


@most_tokens.register
def _copies(scorer: OarG, batch: Batch) -> int:
    twice = min(scorer.stability_rows, max(1, batch.rows // 8)) if scorer.num_draws == 1 else 0
    return (batch.rows * scorer.num_draws + twice) * _own(scorer, batch)


@most_tokens.register
def _counterfactuals(scorer: OarP, batch: Batch) -> int:
    """Batches hold suffixes of similar length: PADDING + 1 of a text, or all those that count as S / PREFIX_DISCOUNT."""
    return batch.rows * batch.length * max(PADDING + 1, batch.length // PREFIX_DISCOUNT**2)


@most_tokens.register(Shuffled)
@most_tokens.register(Inverted)
def _of_inner(scorer: Shuffled | Inverted, batch: Batch) -> int:
    return most_tokens(scorer.inner, batch)


@row_tokens.register(Shuffled)
@row_tokens.register(Inverted)
def _inner(scorer: Shuffled | Inverted, batch: Batch) -> int | None:
    return row_tokens(scorer.inner, batch)


@rehearsal.register(Shuffled)
@rehearsal.register(Inverted)
def _around(scorer: Shuffled | Inverted, batch: Batch, budget: int) -> Rehearsal:
    inner, texts = rehearsal(scorer.inner, batch, budget)
    return Rehearsal(_with(scorer, inner=inner), texts)


@rehearsal.register
def _oar_g(scorer: OarG, batch: Batch, budget: int) -> Rehearsal:
    """All prompts are read before the first batch, and stay."""
    full = _full_batch(scorer, batch, budget)
    begun = -(-len(full.texts) // batch.group_size)
    others = completions(batch.problems - begun, 1, batch.prompt, batch.completion)
    return full._replace(texts=_and_unscored(full.texts, others, begun))


@rehearsal.register
def _oar_p(scorer: OarP, batch: Batch, budget: int) -> Rehearsal:
    """Some columns: the dearest."""
    full = _full_batch(scorer, batch, budget)
    wanted = full.texts.reasoning_mask & _dear_columns(full.texts, budget)
    return full._replace(texts=replace(full.texts, reasoning_mask=wanted))


@rehearsal.register
def _oar_p_approximate(scorer: OarPApproximate, batch: Batch, budget: int) -> Rehearsal:
    if isinstance(scorer.coarse, Spans):
        return _oar_p(scorer, batch, budget)
    return _full_batch(_with(scorer, coarse=_Estimated(scorer.coarse)), batch, budget)


@dataclass(frozen=True)
class _Estimated:
    """A coarse stage whose estimates have values, as they decide what is scored exactly."""

    coarse: CoarseStage

    @property
    def late_share(self) -> float:
        return self.coarse.late_share

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts) -> Estimate:
        found = self.coarse.estimate(counterfactuals, texts)
        golden = 0.618 * torch.arange(texts.token_ids.shape[1]) % 1  # in no order
        return found._replace(scores=golden.expand(texts.token_ids.shape).contiguous())


def _dear_columns(texts: Rollouts, budget: int) -> Bool[Tensor, " S"]:
    """Columns to mask that make the dearest batches of counterfactuals.

    One that runs `w` of `S` tokens counts max(w, S / PREFIX_DISCOUNT) in the budget: most copies of the longest prefixes are at
    the last columns, most copies that run something at w = S / PREFIX_DISCOUNT; where the budget is less than a text, the
    longest suffix is dearest. Neighbours up to PADDING apart share a batch; where they do not fill the budget, longer ones
    are dearer.
    """
    end = texts.token_ids.shape[1] - 1
    width = end - torch.arange(end + 1)
    shortest = -(-end // PREFIX_DISCOUNT)
    scored = texts.reasoning_mask.any(0).nonzero()
    last, longest = end - int(scored.max()), end - int(scored.min())
    of_text = -(-budget // len(texts))  # its share in a batch that holds all texts
    full = of_text // shortest + 1 + PADDING
    few = min(PADDING, of_text // end) + 1
    filling = min(longest, max(shortest, of_text // (PADDING + 1)))
    return (
        (width < last + full)
        | ((width > shortest - full) & (width <= shortest))
        | ((width > filling - 1 - PADDING) & (width <= filling))
        | (width > longest - few)
    )


def _and_unscored(texts: Rollouts, others: Rollouts, begun: int) -> Rollouts:
    """With further rows that have no answer, their prompts numbered from `begun` on."""
    ids = others.token_ids.clone()
    ids[:, 0] += begun
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
    """Its token budget, or that of the scorer inside of it."""
    return next((budget.tokens for budget in scorer.budgets), None)


def _innermost(scorer: Scorer) -> Scorer:
    return _innermost(scorer.inner) if isinstance(scorer, Shuffled | Inverted) else scorer
