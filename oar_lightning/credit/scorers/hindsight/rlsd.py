"""Weights by what a hint does to a token's probability (RLSD)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, group_advantages_of
from oar_lightning.credit.hints import HINTS, OF_GROUPS, HintKind
from oar_lightning.credit.scorers.forward_free.base import TOKENS
from oar_lightning.credit.scorers.hindsight.base import Hindsight
from oar_lightning.data.hints import TEMPLATE
from oar_lightning.policy.token_budget import SomeTokens
from oar_lightning.types import Rollouts

LARGEST_EXPONENT = 20.0
"""SERL's code bounds the log-ratio so; a gate's bounds are tighter."""


def weights(signs: Float[Tensor, " B"], log_ratios: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """exp(sign(A) D)."""
    return (signs[:, None].to(log_ratios.dtype) * log_ratios).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()


@checked("scorer")
class Rlsd(Hindsight):
    """w_t = exp(sign(A_i) D_t), D_t = log pi(y_t | x, r, y_<t) - log pi(y_t | x, y_<t) with a hint r (RLSD, arXiv 2604.03128):
    for gate=direct.

    A token that the hint makes more likely weighs more in a completion with A > 0, and less in one with A < 0. If the policy
    were a true joint distribution of hints and completions, exp(D_t) would be the factor by which the token changes the
    probability of the hint. Weights do not keep a completion's mass.

    The policy reads the hints itself, at temperature 1. A completion without a hint, or of advantage 0, keeps the score 1;
    `unread_frac` counts the first.

    Args:
        hint: see `credit.hints.HINTS`; the paper's is `solution`.
        template: see `Hindsight`, as for the rest.
    """

    def __init__(
        self,
        hint: HintKind = "answer",
        template: str = TEMPLATE,
        token_budget: SomeTokens = TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(template, token_budget, region)
        self.hint: HintKind = hint
        self.reads_groups = hint in OF_GROUPS

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        signs, mask = group_advantages_of(rollouts).sign(), self.mask(rollouts)
        asked = (signs.ne(0) & mask.any(1)).nonzero().flatten().tolist()
        hints = [(row, text) for row in asked if (text := HINTS[self.hint](rollouts, row)) is not None]
        log_ratios, read = self.log_ratios(model, rollouts, hints)
        self.measured(rollouts, len(asked) - read)
        return weights(signs, log_ratios).masked_fill(~mask, 0.0)

    def log_ratios(self, model: Any, rollouts: Rollouts, hints: list[tuple[int, str]]) -> tuple[Float[Tensor, "B S"], int]:
        """D [B S], 0 for rows without a hint; and how many hints were read."""
        out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        if not hints:
            return out, 0
        told = self.told(model, rollouts, hints)
        rows = torch.tensor([row for row, _ in hints], device=out.device)[told.read]
        if not len(rows):
            return out, 0
        found = told.logprobs[told.read] - self.untold(model, rollouts, rows)
        out = out.to(found.dtype)
        out[rows] = found
        return out, len(rows)
