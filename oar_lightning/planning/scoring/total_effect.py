"""The total effect, exact and fast."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.scorers import TotalEffect, TotalEffectFast
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.scoring.base import Batch, DryRunInputs, changed, dry_run_inputs, full_pass, joined, row_tokens
from oar_lightning.planning.scoring.oar import largest_columns
from oar_lightning.policy.token_budget import TokenBudget


@dataclass(eq=False)
class _SomeColumns(TotalEffect):
    """Counterfactuals of given columns alone: which tokens are free, and which would follow, has no values in a dry run."""

    columns: Bool[Tensor, " S"] | None = None

    def free_tokens(self, texts: Texts, logprobs: Float[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        assert self.columns is not None
        return texts.reasoning & self.columns

    @property
    def reach(self) -> float | None:
        return None


@dry_run_inputs.register
def _total_effect_inputs(scorer: TotalEffect, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass, with counterfactuals of the columns with the largest passes."""
    texts = full_pass(scorer, batch, budget).texts
    bound = TokenBudget("scorer.token_budget", budget)
    columns = largest_columns(texts, budget)
    some = _SomeColumns(bound, scorer.fill, scorer.fill_token_id, scorer.seed, scorer.share_prefixes, columns=columns)
    return DryRunInputs(changed(some, freedom=scorer.freedom, free_below=scorer.free_below), texts)


@row_tokens.register
def _completion(scorer: TotalEffectFast, batch: Batch) -> int:
    return batch.completion


@dry_run_inputs.register
def _fast_inputs(scorer: TotalEffectFast, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass; of all other prompts, which are read first, so many that end at once that they fill a pass
    of their own."""
    full = full_pass(scorer, batch, budget)
    problems = -(-len(full.texts) // batch.group_size)
    left = batch.problems - problems
    each = -(-len(full.texts) // max(1, left))
    others = completions(left * each, each, batch.prompt, batch.completion)
    column = torch.arange(batch.length)
    others = replace(
        others,
        reasoning_mask=(column == batch.prompt).expand_as(others.reasoning_mask),
        answer_mask=(column == batch.prompt + 1).expand_as(others.answer_mask),
    )
    return full._replace(texts=joined(full.texts, others, problems))
