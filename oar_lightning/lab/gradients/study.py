"""lab.gradients: signal, bias and variance of each estimator's policy gradient on the lab's completions."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Interval
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.credit.component import group_advantages_of
from oar_lightning.lab.gradients.batch import Coordinates, Weighted
from oar_lightning.lab.gradients.blocks import blocks_of
from oar_lightning.lab.gradients.quality import Quality, gradient_quality
from oar_lightning.lab.types import Estimate, Studied, Truth
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget

log = logging.getLogger(__name__)

UNWEIGHTED, VALUES = "(unweighted)", "(values)"
"""Names of what estimators are held against; estimators have names without parentheses."""


@dataclass(frozen=True)
class TokenAdvantages:
    """Advantages that no estimator gave."""

    advantages: Float[Tensor, "B S"]
    loss_mask: Bool[Tensor, "B S"] | None = None


@checked("lab.gradients")
@dataclass(frozen=True)
class Gradients:
    """The gradient of a problem's completions is one batch's.

    Args:
        blocks: parts of the problems, each of which is left out once for an interval.
        coordinates: gradients are taken of so many numbers of the policy's last parameters; None for all of the policy. Some
            numbers are kept of each of them, for each block and estimator.
        token_budget: padded tokens of one pass, or `auto`; bounds memory.
    """

    blocks: Annotated[int, Interval(ge=2)] = 8
    coordinates: PositiveInt | None = 2**17
    token_budget: SomeTokens = PASS_TOKENS

    def __call__(
        self, model: Any, studied: Studied, estimates: Sequence[Estimate], truths: Sequence[Truth], loss: LossConfig
    ) -> Quality:
        """The statistics of unweighted advantages, of values as token advantages where a truth has them, and of each estimate.

        Nothing, which is logged, where too few problems have a completion with an advantage.
        """
        rollouts = studied.rollouts
        advantages = group_advantages_of(rollouts)
        rows = advantages.ne(0).nonzero().flatten()
        if len({studied.problem[row] for row in rows.tolist()}) < 2:
            log.warning("lab.gradients: fewer than two problems have right and wrong completions, there is nothing to compare")
            return {}
        problems = len(set(studied.problem))
        if problems - math.ceil(problems / self.blocks) < 2:  # without its largest block, which an interval leaves out
            log.warning(
                "lab.gradients: lab.problems=%d are too few for intervals over lab.gradients.blocks=%d; raise one of them",
                problems,
                self.blocks,
            )
            return {}
        everywhere = torch.where(rollouts.response_mask, advantages[:, None], torch.zeros_like(advantages)[:, None])
        credit: dict[str, Weighted] = {UNWEIGHTED: TokenAdvantages(everywhere)}
        values = [truth.values for truth in truths if truth.values is not None]
        if values:
            credit[VALUES] = TokenAdvantages(values[0].to(advantages).nan_to_num())
        references = list(credit)
        credit |= {e.name: e for e in estimates}
        blocks = blocks_of(
            model,
            rollouts,
            credit,
            studied.problem,
            self.blocks,
            loss,
            int(rollouts.response_mask.sum(1).max()),
            TokenBudget("lab.gradients.token_budget", self.token_budget, PASS_TOKENS),
            Coordinates.of(model, self.coordinates),
            references,
        )
        return gradient_quality(blocks)
