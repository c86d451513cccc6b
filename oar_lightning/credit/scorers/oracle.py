"""Perfect credit, where whoever made the problem knows what decides its outcome: how much credit can be worth at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import CausalSpans, MathProblem, Rollouts


class Oracle(Scorer):
    """I_t = 1 on reasoning tokens that overlap a causal span of the completion's own text, 0 elsewhere.

    Args:
        locate: the task's knowledge, (problem, completion) -> `CausalSpans`, e.g. `data.chain_credit.ChainCredit`.

    A completion without a causal span in its reasoning scores 0 everywhere, so that the gate leaves its weights at 1
    (`unread_frac`); `inexact_frac` counts those where `locate` says that it fell back. The scores are 0 and 1: for a
    quantile gate whose threshold falls on the zeros, the zeros are not suppressed (see conf/experiment/oracle.yaml).
    """

    def __init__(self, locate: Callable[[MathProblem, str], CausalSpans]) -> None:
        super().__init__()
        self.locate = locate

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        if not rollouts.token_spans:
            raise ValueError("scorer=oracle reads the text of completions, and these rollouts have none; use another scorer")
        importance = torch.zeros(rollouts.token_ids.shape)
        reasoning = rollouts.reasoning_mask.cpu()
        inexact = 0
        for row, (problem, text, tokens) in enumerate(
            zip(rollouts.problems, rollouts.completions, rollouts.token_spans, strict=True)
        ):
            found = self.locate(problem, text)
            inexact += not found.exact
            columns = rollouts.response_mask[row].nonzero().flatten().tolist()
            marked = [any(a < end and start < b for start, end in found.spans) for a, b in tokens]
            # bytes that are not UTF-8 may have changed the text's length: its tokens are not where their ranges say
            if tokens and tokens[-1][1] == len(text):
                importance[row, columns] = torch.tensor(marked, dtype=importance.dtype)
        importance *= reasoning
        self.metrics = {
            "unread_frac": 1 - float(importance.any(1).float().mean()),
            "inexact_frac": inexact / len(rollouts),
        }
        return importance.to(rollouts.token_ids.device)
