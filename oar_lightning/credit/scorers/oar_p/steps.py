"""OAR-P by steps: one counterfactual a step in place of one a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.scorers.oar_p.base import ONE_FILL
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.exact import OarP
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.steps import Steps, StepScorer
from oar_lightning.credit.segments import Segmenter, segment_numbers
from oar_lightning.types import Rollouts


@checked("scorer", ONE_FILL)
@dataclass(eq=False)
class OarPSteps(StepScorer, OarP):
    """I_k = KL(p || p^(k)) for the tokens of step k, p^(k) = the probe with all of the step's tokens replaced by fill tokens;
    nats.

    The cost is one counterfactual a step, where that of `OarP` is one a token. Each token has its step's whole score, so that
    a gate shifts credit between steps and not within them. `freedom` is the tokens' own and comes after.

    Args:
        segments: divides the reasoning.
        The others are those of `OarP`.
    """

    segments: Segmenter = field(kw_only=True)

    def steps(self, model: Any, rollouts: Rollouts) -> Steps:
        mask = rollouts.reasoning_mask
        starts = self.segments(model, rollouts, mask)
        scores = self.influences(model, rollouts, starts)
        self.metrics["forward_equivalents"] += self.segments.passes(rollouts)
        self.metrics["segments"] = int(starts.sum()) / max(1, len(rollouts))
        return Steps(scores, segment_numbers(starts, mask))

    def of_tokens(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        return self.free(model, rollouts, scores)

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        clean = counterfactuals.read(texts)
        distances, tokens = counterfactuals.distances(clean, texts.starts, texts.spans())
        of_step = texts.starts.flatten().cumsum(0).view_as(texts.starts) - 1  # index of each token's step among the distances
        return distances[of_step[texts.reasoning]], clean.tokens + tokens
