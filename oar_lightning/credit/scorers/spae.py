"""What a step adds to an advantage by the potential of the text (SPAE)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, checked
from oar_lightning.credit.scorers.information_gain import CUE, VALUES, InformationGain
from oar_lightning.credit.scorers.prefix_answers import Belief
from oar_lightning.credit.segments import Segmenter
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget


@checked("scorer", CUE)
class Spae(InformationGain):
    """c_k = A_i (f_k - 1) + bonus * clip(Phi_k - Phi_{k-1}, -1, 1), so that gate=signed with combine=add gives
    A_i f_k + bonus * clip(...).

    Phi is the step potential of `InformationGain`. f_k = 1 up to the first step after which Phi > `solved`, and 1 - Phi_k from
    then on: going on after the solution teaches less. The potential is read in SPAE's code; f, the clipping and the bonus are
    ours, and so is reading the gold answer's probability in place of sampling answers.

    Args:
        segments, cue, own_cue, token_budget, share_prefixes: see `InformationGain`.
        bonus: weight of the potential's gain.
        solved: the potential from which a problem counts as solved.
    """

    added = True

    def __init__(
        self,
        segments: Segmenter,
        bonus: NonNegativeFloat = 0.5,
        solved: Annotated[float, Interval(ge=-1, le=1), "a potential"] = 0.9,
        cue: str = "The answer is \\boxed{",
        own_cue: bool = True,
        token_budget: TokenBudget | SomeTokens = PASS_TOKENS,
        share_prefixes: bool = True,
    ) -> None:
        super().__init__(segments, "potential", cue, own_cue, token_budget=token_budget, share_prefixes=share_prefixes)
        self.bonus = bonus
        self.solved = solved

    def gains(self, belief: Belief, advantage: float | None) -> Float[Tensor, " K"]:
        phi = VALUES["potential"](belief)
        before = (phi[:-1] > self.solved).long().cummax(0).values.bool()  # solved before the step
        factor = torch.where(before, 1 - phi[1:], torch.ones_like(phi[1:]))
        return (advantage or 0.0) * (factor - 1) + self.bonus * phi.diff().clamp(-1, 1)
