"""Coarse stages of approximate OAR-P, which estimate every score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import Fraction, PositiveInt, checked
from oar_lightning.credit.scorers.oar_p.counterfactual import Clean, Counterfactuals
from oar_lightning.credit.scorers.oar_p.texts import Texts

Late = Callable[[list[int]], Bool[Tensor, "N S"]]
"""The costs of a coarse stage -> the tokens that the rest of the budget scores exactly, whatever their estimates were."""


class Estimate(NamedTuple):
    """Estimated scores of a batch of texts, zero outside `reasoning` and for late tokens, and the clean texts.

    ``costs``: tokens through the model for each text by itself, as if none were late; a backward pass to hidden states counts
    as one forward pass.
    ``late``: the late tokens at these costs. ``tokens``: padded tokens that the batch ran.
    """

    scores: Float[Tensor, "N S"]
    costs: list[int]
    late: Bool[Tensor, "N S"]
    tokens: int
    clean: Clean


@runtime_checkable
class CoarseStage(Protocol):
    """Estimates scores at a cost that grows with the length, not with its square.

    `late_share`: fraction of the budget for exact scores for the latest tokens; the rest is for the largest estimates.
    """

    @property
    def late_share(self) -> float: ...

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts, late: Late) -> Estimate:
        """Estimated scores of a batch of texts, but of their late tokens."""
        ...


@checked("scorer.coarse")
@dataclass(frozen=True)
class Spans:
    """A coarse stage that masks `size` neighbouring tokens together and gives each the score of its span. Its cost still grows
    with the square of the length, divided by `size`."""

    size: Annotated[PositiveInt, "a number of tokens"] = 8
    late_share: Fraction = 0.5

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts, late: Late) -> Estimate:
        clean = counterfactuals.read(texts)
        rank = texts.reasoning.long().cumsum(1) - 1
        starts = texts.reasoning & (rank % self.size == 0)
        lengths = torch.tensor(texts.lengths(), device=starts.device)
        costs = suffix_costs(texts).expand_as(rank).masked_fill(~starts, 0).sum(1)
        costs += (1 + counterfactuals.fill.passes) * lengths
        spared = late(costs.tolist())
        wanted = texts.reasoning & ~spared
        starts &= wanted
        scores, tokens = torch.zeros(rank.shape, dtype=clean.outcome.dtype, device=rank.device), 0
        if starts.any():
            distances, tokens = counterfactuals.distances(clean, starts, span=self.size)
            span = starts.flatten().cumsum(0).view_as(rank) - 1  # index of each token's span among the distances
            scores = distances[span.clamp(min=0)].masked_fill(~wanted, 0.0)
        return Estimate(scores, costs.tolist(), spared, clean.tokens + tokens, clean)


def suffix_costs(texts: Texts) -> Int[Tensor, " S"]:
    """Tokens from each column to the end of the texts: a counterfactual at that column runs them again."""
    return torch.arange(texts.token_ids.shape[1], 0, -1, device=texts.token_ids.device)
