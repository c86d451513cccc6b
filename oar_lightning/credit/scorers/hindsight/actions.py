"""The mask of SERL alone."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Interval
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.located import Locate, located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import Rollouts


@checked("scorer")
class ActionMask(Scorer):
    """1 + bonus on action tokens, 1 on the others: for gate=direct. The control of SERL: its mask without any hindsight (ours).

    Args:
        actions: see `Serl`.
        bonus: what action tokens get more, or less.
        region: the tokens that are scored.
    """

    def __init__(
        self,
        actions: Locate,
        bonus: Annotated[float, Interval(ge=-1, lt=float("inf")), "an addition to the weight 1"] = 0.1,
        region: Region = "response",
    ) -> None:
        self.covers = region
        self.actions = actions
        self.bonus = bonus

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        tokens = located(rollouts, self.actions, "scorer.actions").tokens
        return (1 + self.bonus * tokens.float()).masked_fill(~region_mask(rollouts, self.covers), 0.0)
