"""The oracle scorer: perfect credit from a task's own knowledge, an upper bound on what credit assignment can gain."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.located import Locate, located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import Rollouts


class Oracle(Scorer):
    """I_t = 1 on reasoning tokens that overlap a causal span of the completion's own text, 0 elsewhere.

    Args:
        locate: the task's knowledge, (problem, completion) -> `CausalSpans`, e.g. `data.chain.credit.ChainCredit`.

    A completion without a causal span in its reasoning scores 0 everywhere, so that the gate leaves its weights at 1;
    `unread_frac` is the fraction of such completions, `inexact_frac` of those with inexact spans. Scores are 0 or 1: a
    quantile gate whose threshold falls on the zeros does not suppress them (see conf/experiment/oracle.yaml).
    """

    def __init__(self, locate: Locate) -> None:
        super().__init__()
        self.locate = locate

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        tokens, inexact = located(rollouts, self.locate, "scorer=oracle")
        importance = (tokens & rollouts.reasoning_mask).float()
        self.metrics = {
            "unread_frac": 1 - float(importance.any(1).float().mean()),
            "inexact_frac": inexact / len(rollouts),
        }
        return importance
