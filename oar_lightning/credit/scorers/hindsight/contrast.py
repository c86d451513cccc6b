"""What a right completion as a hint does to a token's probability, against wrong ones (RLCSD)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.credit.component import Region
from oar_lightning.credit.hints import completion_hint, siblings
from oar_lightning.credit.scorers.hindsight.base import Hindsight
from oar_lightning.credit.teachers import Teacher
from oar_lightning.data.hints import TEMPLATE
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts


@checked("scorer")
class Contrast(Hindsight):
    """e_t = log pi(y_t | x, h+, y_<t) - log mean_k pi(y_t | x, h-_k, y_<t), h+ a correct completion of the group, h-_k wrong
    ones, the row itself excluded (RLCSD, arXiv 2606.11709): for gate=contrast.

    What hints change by their style alone cancels. Outcomes are told by the sign of the group advantage. A completion of
    advantage 0 and one whose group has no other of either outcome score 0; `unread_frac` counts the latter. A wrong hint that
    is too long for the model's positions is left out.

    Args:
        samples: the most wrong hints.
        weights: scores exp(sign(A_i) e_t) for gate=direct, in place of e_t: RLSD with contrast.
        teacher: see `Hindsight`, as for the rest.
    """

    reads_groups = True

    def __init__(
        self,
        samples: PositiveInt = 4,
        weights: bool = False,
        teacher: Teacher | None = None,
        template: str = TEMPLATE,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(teacher, template, token_budget, region)
        self.samples = samples
        self.signed = self.added = not weights

    def log_ratios(self, model: Any, rollouts: Rollouts, asked: Sequence[int]) -> tuple[Float[Tensor, "B S"], int]:
        hints: list[tuple[int, str]] = []
        places: dict[int, tuple[int, range]] = {}
        """Of each row: the place of its right hint, and those of its wrong ones."""
        for row in asked:
            right, wrong = siblings(rollouts, row, "correct")[:1], siblings(rollouts, row, "wrong")[: self.samples]
            if right and wrong:
                places[row] = len(hints), range(len(hints) + 1, len(hints) + 1 + len(wrong))
                hints += [(row, completion_hint(rollouts, other)) for other in (*right, *wrong)]
        told = self.told(model, rollouts, hints)
        out, read = told.logprobs.new_zeros(rollouts.token_ids.shape), 0
        for row, (positive, rest) in places.items():
            negative = [place for place in rest if told.read[place]]
            if told.read[positive] and negative:
                against = told.logprobs[negative].logsumexp(0) - math.log(len(negative))
                out[row] = told.logprobs[positive] - against
                read += 1
        return out, read
