"""OAR-P for long completions: a cheap estimate of every score, and exact scores where the estimates are largest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, checked
from oar_lightning.credit.scorers.oar_p.attribution import Attribution
from oar_lightning.credit.scorers.oar_p.base import ONE_FILL
from oar_lightning.credit.scorers.oar_p.coarse import CoarseStage, Estimate, suffix_costs
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.exact import OarP
from oar_lightning.credit.scorers.oar_p.texts import Texts


@checked("scorer", ONE_FILL)
@dataclass(eq=False)
class OarPApproximate(OarP):
    """`coarse` estimates scores; the rest of the budget pays for exact ones. A fraction of that rest (`coarse.late_share`) goes
    to the latest tokens, where exact scores are cheapest and first-order estimates worst; they are not estimated. What remains
    goes to the largest estimates.

    Each completion has its own budget, so its scores do not depend on its neighbours.

    Args:
        coarse: `Attribution` (first order; needs `can_share_prefixes` and plain attention) or `Spans`.
        budget: cost of a completion's scores, in forward passes over its own text. It includes the coarse stage, at what that
            would cost for every token.
        The others are those of `OarP`.
    """

    coarse: CoarseStage = field(default=Attribution(), kw_only=True)
    budget: Annotated[NonNegativeFloat, "a number of forward passes"] = field(default=4.8, kw_only=True)

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        found = self.coarse.estimate(counterfactuals, texts, lambda spent: self._late(texts, spent))
        scores, clean = found.scores, found.clean
        # estimates hold for what later tokens see of a token; the probe reads the states of these tokens themselves
        probed = texts.reasoning & clean.place.before_mask(texts.answer)
        refined = self._affordable(texts, found) | probed
        exact, exact_tokens = counterfactuals.distances(clean, refined)
        return scores.to(exact).masked_scatter(refined, exact)[texts.reasoning], found.tokens + exact_tokens

    def _affordable(self, texts: Texts, found: Estimate) -> Bool[Tensor, "N S"]:
        """The tokens of each text that the budget scores exactly."""
        costs, late = suffix_costs(texts), found.late
        budget = self._rest(texts, found.costs) - (costs * late).sum(1)
        values, order = found.scores.masked_fill(~texts.reasoning | late, -torch.inf).sort(dim=1, descending=True, stable=True)
        affordable = (costs[order].cumsum(1) <= budget[:, None]) & (values != -torch.inf)
        return late | torch.zeros_like(late).scatter(1, order, affordable)

    def _late(self, texts: Texts, spent: list[int]) -> Bool[Tensor, "N S"]:
        """The latest tokens of each text, which are scored exactly whatever their estimates are."""
        cost_from_here = (suffix_costs(texts) * texts.reasoning).flip(1).cumsum(1).flip(1)
        return texts.reasoning & (cost_from_here <= self.coarse.late_share * self._rest(texts, spent)[:, None])

    def _rest(self, texts: Texts, spent: list[int]) -> Float[Tensor, " N"]:
        """Of each text's budget, after the coarse stage."""
        device = texts.token_ids.device
        return float(self.budget) * torch.tensor(texts.lengths(), device=device) - torch.tensor(spent, device=device)
