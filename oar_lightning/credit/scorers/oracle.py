"""The oracle scorer: perfect credit from a task's own knowledge, an upper bound on what credit assignment can gain."""

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
        locate: the task's knowledge, (problem, completion) -> `CausalSpans`, e.g. `data.chain.credit.ChainCredit`.

    A completion without a causal span in its reasoning scores 0 everywhere, so that the gate leaves its weights at 1;
    `unread_frac` is the fraction of such completions, `inexact_frac` of those with inexact spans. Scores are 0 or 1: a
    quantile gate whose threshold falls on the zeros does not suppress them (see conf/experiment/oracle.yaml).
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
            causal = self.locate(problem, text)
            inexact += not causal.exact
            columns = rollouts.response_mask[row].nonzero().flatten().tolist()
            is_causal = [any(first < end and start < last for start, end in causal.spans) for first, last in tokens]
            # bytes that are not UTF-8 may have changed the text's length, and the tokens' ranges are then wrong
            if tokens and tokens[-1][1] == len(text):
                importance[row, columns] = torch.tensor(is_causal, dtype=importance.dtype)
        importance *= reasoning
        self.metrics = {
            "unread_frac": 1 - float(importance.any(1).float().mean()),
            "inexact_frac": inexact / len(rollouts),
        }
        return importance.to(rollouts.token_ids.device)
