"""Advantages by phrases of planning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, Rule, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.located import located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import CausalSpans, MathProblem, Rollouts

PLANNING = ("let's", "we need to", "first", "next", "then", "so", "but wait", "in other words", "on the other hand")


@checked(
    "scorer",
    Rule(
        lambda phrases: phrases and all(isinstance(phrase, str) and phrase.strip() for phrase in phrases),
        "scorer.phrases must be a list of texts that are not empty, got {phrases}",
    ),
)
class Hicra(Scorer):
    """alpha |A_i| on the tokens of planning phrases, 0 elsewhere, to be added to A_i (HICRA, arXiv 2509.03646).

    Correct completions learn planning faster, wrong ones unlearn it more slowly. The paper mines its phrases from solutions;
    here they are a list. For gate=signed with combine=add. On the built-in task such words decide nothing: a negative control.

    Args:
        alpha: share of the advantage that planning tokens gain, in [0, 1].
        phrases: searched for as whole words, whatever their case.
        region: the tokens that are scored.
    """

    signed = True
    added = True

    def __init__(
        self,
        alpha: Annotated[Fraction, "a share of the advantage"] = 0.2,
        phrases: Sequence[str] = PLANNING,
        region: Region = "response",
    ) -> None:
        self.covers = region
        self.alpha = alpha
        longest_first = sorted({phrase.strip() for phrase in phrases}, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(phrase)}(?!\w)" for phrase in longest_first), re.IGNORECASE)

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        planning = located(rollouts, self._phrases, "scorer=hicra").tokens
        size = self.alpha * group_advantages_of(rollouts).abs()[:, None]
        inside = planning & region_mask(rollouts, self.covers)
        self.metrics = {"planning_frac": float(inside.sum()) / max(1, int(rollouts.response_mask.sum()))}
        return size.expand(planning.shape).masked_fill(~inside, 0.0)

    def _phrases(self, problem: MathProblem, text: str) -> CausalSpans:
        return CausalSpans(tuple(match.span() for match in self._pattern.finditer(text)), True)
