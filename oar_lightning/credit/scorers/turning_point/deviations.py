"""The tokens of a completion at which it left greedy decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.credit.predictions import read_states
from oar_lightning.policy.lm_head import head_logits
from oar_lightning.policy.token_budget import TokenBudget, unset_budget
from oar_lightning.types import Rollouts


@dataclass(frozen=True)
class Deviation:
    """A token that greedy decoding would not have taken: its `column`, the token that it would, and by how many nats that was
    likelier, which is 0 where both were as likely."""

    column: int
    likely: int
    gap: float


def reading_budget() -> TokenBudget:
    """Of passes that read the states from which completions were predicted, where sampling has kept none."""
    return unset_budget("reading completions")


def deviations(model: Any, rollouts: Rollouts) -> list[list[Deviation]]:
    """Those of each row's response. From kept states or a pass."""
    gaps, likely = read_states(model, rollouts, rollouts.response_mask, reading_budget(), _greedy)
    rows, columns = (rollouts.response_mask & (likely.long() != rollouts.token_ids)).nonzero(as_tuple=True)
    at = (x.tolist() for x in (rows, columns, likely[rows, columns].long(), gaps[rows, columns]))
    out: list[list[Deviation]] = [[] for _ in range(len(rollouts))]
    for row, column, token, gap in zip(*at, strict=True):
        out[row].append(Deviation(column, token, gap))
    return out


def _greedy(model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n 2"]:
    """log p(most probable token) - log p(token), nats, and the most probable token, a number that float32 holds exactly."""
    logits = head_logits(model, hidden)
    most, likely = logits.max(-1)
    return torch.stack([most - logits.gather(-1, targets[:, None])[:, 0], likely.to(most)], -1)
