"""OAR-P for long completions: a cheap estimate of every score, exact scores where the estimate is largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.language_model import can_share_prefixes
from oar_lightning.scoring.attribution import Attribution
from oar_lightning.scoring.counterfactual import Counterfactuals
from oar_lightning.scoring.oar_p import OarP
from oar_lightning.scoring.probes import Probe, ProbeSchedule
from oar_lightning.scoring.texts import Texts

LATE_SHARE = 0.75
"""Of the budget for exact scores, what goes to the latest tokens: measured best of 0, 0.5, 0.7, 0.85 and 1."""


@runtime_checkable
class CoarseStage(Protocol):
    """Estimates every score at a cost that grows with the length, not with its square."""

    def estimate(self, model: Any, texts: Texts, probe: Probe, masking: Counterfactuals) -> tuple[list[Tensor], list[int], int]:
        """A score for each reasoning token of each text [R], the tokens that each text costs by itself, and those that the
        padded batches ran."""
        ...


@dataclass(frozen=True)
class Spans:
    """A coarse stage that masks `size` neighbouring tokens together and gives each the score of its span. (Its cost still
    grows with the square of the length, divided by `size`.)"""

    size: int = 8

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"scorer.coarse.size is a number of tokens and must be >= 1, got {self.size}")

    def estimate(self, model: Any, texts: Texts, probe: Probe, masking: Counterfactuals) -> tuple[list[Tensor], list[int], int]:
        rank = texts.reasoning.long().cumsum(1) - 1
        starts = texts.reasoning & (rank % self.size == 0)
        found, tokens = masking.distances(model, texts, probe, starts, span=self.size)
        counts = texts.reasoning.sum(1).tolist()
        scores = [values.repeat_interleave(self.size)[:n] for values, n in zip(found, counts, strict=True)]
        costs = suffix_costs(texts).masked_fill(~starts, 0).sum(1).tolist()
        return scores, costs, tokens


class OarPApproximate(OarP):
    """Coarse to fine: `coarse` estimates all scores; then the budget buys exact ones, most of it (`LATE_SHARE`) for the latest
    tokens, where they are cheapest and first-order estimates worst, the rest for the largest estimates.

    A completion's scores depend on it alone, not on its neighbours: each has its own budget.

    Args:
        coarse: `Attribution` (first order; needs `can_share_prefixes` and plain attention) or `Spans`.
        budget: forward passes over the completion's own text that its scores may cost, the coarse stage (which always runs
            in full) included.
        The others are those of `OarP`.
    """

    def __init__(
        self,
        coarse: CoarseStage = Attribution(),
        budget: float = 5.0,
        probe: ProbeSchedule = ProbeSchedule(),
        token_budget: int = 4096,
        fill_token_id: int | None = None,
        block: int = 8,
    ) -> None:
        super().__init__(probe, token_budget, fill_token_id, block)
        if budget < 0:
            raise ValueError(f"scorer.budget is a number of forward passes and must be >= 0, got {budget}")
        self.coarse = coarse
        self.budget = budget

    def score(self, model: Any, texts: Texts, probe: Probe, masking: Counterfactuals) -> tuple[list[Float[Tensor, " R"]], int]:
        if isinstance(self.coarse, Attribution) and not can_share_prefixes(model):
            raise ValueError(
                "scorer.coarse: attribution needs a model with plain keys and values in every layer (no sliding window, no "
                "recurrent state); use scorer/coarse=spans"
            )
        scores, spent, tokens = self.coarse.estimate(model, texts, probe, masking)
        # the probe reads the states of these tokens themselves, not only what later ones see of them
        read = texts.reasoning & probe.locate(texts.answer).before_mask(texts.answer)
        refined = self._affordable(texts, scores, spent) | read
        exact, more = masking.distances(model, texts, probe, refined)
        for row, values in enumerate(exact):
            scores[row] = scores[row].masked_scatter(refined[row, texts.reasoning[row]], values.to(scores[row]))
        return scores, tokens + more

    def _affordable(self, texts: Texts, scores: list[Tensor], spent: list[int]) -> Bool[Tensor, "N S"]:
        """The tokens of each text that the budget scores exactly."""
        costs = suffix_costs(texts)
        chosen = torch.zeros_like(texts.reasoning)
        for row, (length, used) in enumerate(zip(texts.lengths(), spent, strict=True)):
            columns = texts.reasoning[row].nonzero().flatten()
            left = self.budget * length - used
            latest = columns.flip(0)
            late = latest[costs[row, latest].cumsum(0) <= LATE_SHARE * left]
            chosen[row, late] = True
            left -= float(costs[row, late].sum())
            largest = columns[scores[row].argsort(descending=True, stable=True)]
            largest = largest[~chosen[row, largest]]
            chosen[row, largest[costs[row, largest].cumsum(0) <= left]] = True
        return chosen


def suffix_costs(texts: Texts) -> Int[Tensor, "N S"]:
    """Tokens from each place to the end of its text, which a counterfactual there runs again."""
    columns = torch.arange(texts.token_ids.shape[1], device=texts.token_ids.device)
    return texts.attention.sum(1, keepdim=True) - columns
