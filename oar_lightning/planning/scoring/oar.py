"""OAR's scorers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from oar_lightning.credit.scorers import OarG, OarP, OarPApproximate, OarPSteps, Spans
from oar_lightning.credit.scorers.oar_p.base import CounterfactualScorer
from oar_lightning.credit.scorers.oar_p.coarse import CoarseStage, Estimate, Late
from oar_lightning.credit.scorers.oar_p.counterfactual import PADDING, Counterfactuals
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.prefix import PREFIX_DISCOUNT
from oar_lightning.credit.segments import FixedLength
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.scoring.base import (
    Batch,
    DryRunInputs,
    changed,
    dry_run_inputs,
    full_pass,
    joined,
    most_tokens,
    prompt_and_completion,
    row_tokens,
)
from oar_lightning.types import Rollouts

row_tokens.register(CounterfactualScorer)(prompt_and_completion)


@row_tokens.register
def _completion(scorer: OarG, batch: Batch) -> int:
    return batch.completion - 1  # the last token's state is not read


@most_tokens.register
def _copies(scorer: OarG, batch: Batch) -> int:
    twice_drawn = min(scorer.stability_rows, max(1, batch.rows // 8)) if scorer.num_draws == 1 else 0
    return (batch.rows * scorer.num_draws + twice_drawn) * _completion(scorer, batch)


@most_tokens.register
def _counterfactuals(scorer: CounterfactualScorer, batch: Batch) -> int:
    """A pass holds suffixes of similar length: PADDING + 1 of each text, or all that count as S / PREFIX_DISCOUNT tokens."""
    return batch.rows * batch.length * max(PADDING + 1, batch.length // PREFIX_DISCOUNT**2)


@dry_run_inputs.register
def _oar_g_inputs(scorer: OarG, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass, and the prompts of all others: OAR-G reads all prompts first and keeps their pasts."""
    full = full_pass(scorer, batch, budget)
    problems = -(-len(full.texts) // batch.group_size)
    others = completions(batch.problems - problems, 1, batch.prompt, batch.completion)
    nothing = torch.zeros_like(others.answer_mask)
    return full._replace(texts=joined(full.texts, replace(others, reasoning_mask=nothing, answer_mask=nothing), problems))


@dry_run_inputs.register
def _oar_p_inputs(scorer: OarP, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass, of which only the columns with the largest passes are masked."""
    full = full_pass(scorer, batch, budget)
    wanted = full.texts.reasoning_mask & largest_columns(full.texts, budget)
    return full._replace(texts=replace(full.texts, reasoning_mask=wanted))


@dry_run_inputs.register
def _oar_p_steps_inputs(scorer: OarPSteps, batch: Batch, budget: int) -> DryRunInputs:
    """As with steps of one token: how many a text will have is not known."""
    full = _oar_p_inputs(scorer, batch, budget)
    return full._replace(scorer=changed(full.scorer, segments=FixedLength(1)))


@dry_run_inputs.register
def _oar_p_approximate_inputs(scorer: OarPApproximate, batch: Batch, budget: int) -> DryRunInputs:
    if isinstance(scorer.coarse, Spans):
        return _oar_p_inputs(scorer, batch, budget)
    return full_pass(changed(scorer, coarse=_MadeUpEstimates(scorer.coarse)), batch, budget)


@dataclass(frozen=True)
class _MadeUpEstimates:
    """A coarse stage with made-up estimates: a dry run's have no values, but they decide what is scored exactly."""

    coarse: CoarseStage

    @property
    def late_share(self) -> float:
        return self.coarse.late_share

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts, late: Late) -> Estimate:
        estimate = self.coarse.estimate(counterfactuals, texts, late)
        scores = 0.618 * torch.arange(texts.token_ids.shape[1]) % 1  # neither rising nor falling along the text
        return estimate._replace(scores=scores.expand(texts.token_ids.shape).contiguous())


def largest_columns(texts: Rollouts, budget: int) -> Bool[Tensor, " S"]:
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
