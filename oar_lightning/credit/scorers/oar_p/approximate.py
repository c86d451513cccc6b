"""OAR-P for long completions: a cheap estimate of every score, exact scores where the estimate is largest."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.scorers.oar_p.attribution import Attribution
from oar_lightning.credit.scorers.oar_p.coarse import CoarseStage, suffix_costs
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.exact import OarP
from oar_lightning.credit.scorers.oar_p.texts import Texts


@dataclass(eq=False)
class OarPApproximate(OarP):
    """Coarse to fine: `coarse` estimates all scores; then the budget buys exact ones, a part (`coarse.late_share`) for the
    latest tokens, where they are cheapest and first-order estimates worst, the rest for the largest estimates.

    A completion's scores depend on it alone, not on its neighbours: each has its own budget.

    Args:
        coarse: `Attribution` (first order; needs `can_share_prefixes` and plain attention) or `Spans`.
        budget: forward passes over the completion's own text that its scores may cost, the coarse stage (which always runs
            in full) included.
        The others are those of `OarP`.
    """

    coarse: CoarseStage = field(default=Attribution(), kw_only=True)
    budget: float = field(default=4.8, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget < 0:
            raise ValueError(f"scorer.budget is a number of forward passes and must be >= 0, got {self.budget}")

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        scores, spent, tokens, clean = self.coarse.estimate(counterfactuals, texts)
        # the probe reads the states of these tokens themselves, not only what later ones see of them
        read = texts.reasoning & clean.place.before_mask(texts.answer)
        refined = self._affordable(texts, scores, spent) | read
        exact, more = counterfactuals.distances(clean, refined)
        return scores.to(exact).masked_scatter(refined, exact)[texts.reasoning], tokens + more

    def _affordable(self, texts: Texts, scores: Float[Tensor, "N S"], spent: list[int]) -> Bool[Tensor, "N S"]:
        """The tokens of each text that the budget scores exactly."""
        costs = suffix_costs(texts)
        left = self.budget * torch.tensor(texts.lengths(), device=costs.device) - torch.tensor(spent, device=costs.device)
        of_later = (costs * texts.reasoning).flip(1).cumsum(1).flip(1)
        late = texts.reasoning & (of_later <= self.coarse.late_share * left[:, None])
        left = left - (costs * late).sum(1)
        values, order = scores.masked_fill(~texts.reasoning | late, -torch.inf).sort(dim=1, descending=True, stable=True)
        bought = (costs[order].cumsum(1) <= left[:, None]) & (values != -torch.inf)
        return late | torch.zeros_like(late).scatter(1, order, bought)
