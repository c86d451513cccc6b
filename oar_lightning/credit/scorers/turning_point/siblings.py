"""The other side of a decision: completions of the group that took it as greedy decoding does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from oar_lightning.credit.predictions import read_states
from oar_lightning.credit.scorers.turning_point.deviations import Deviation, reading_budget
from oar_lightning.types import Rollouts


@torch.no_grad()
def mark_siblings(
    model: Any, rollouts: Rollouts, turns: Mapping[int, Deviation], rows: Sequence[int], scores: Float[Tensor, "B S"]
) -> int:
    """Score 1 where the completions of a group that did not turn took the decision at which another one turned.

    Of a completion's tokens that are the most probable one at a turning point, it is the one that was predicted from the state
    nearest (by its angle) to that of the turning point. `rows`: those of the group. Returns the tokens that were read anew,
    where sampling has kept no states.
    """
    others = [row for row in rows if row not in turns]
    if not turns or not others:
        return 0
    chosen = torch.tensor(rows, device=scores.device)
    group, start = rollouts.select(chosen), rollouts.columns(chosen).start
    states, read = group.prediction_states, 0
    if states is None:
        found = read_states(model, group, group.response_mask, reading_budget(), lambda model, hidden, targets: hidden)
        states, read = found.permute(1, 2, 0), int(group.attention_mask.sum())
    place = {row: number for number, row in enumerate(rows)}
    at = states[[place[row] for row in turns], [turn.column - start for turn in turns.values()]]
    other = torch.tensor([place[row] for row in others], device=scores.device)
    likely = torch.tensor([turn.likely for turn in turns.values()], device=scores.device)
    same = (group.token_ids[other] == likely[:, None, None]) & group.response_mask[other]
    angle = torch.einsum("th,osh->tos", normalize(at.float(), dim=-1), normalize(states[other].float(), dim=-1))
    nearest = angle.masked_fill(~same, -torch.inf).argmax(-1)
    turn, which = same.any(-1).nonzero(as_tuple=True)
    scores[chosen[other[which]], nearest[turn, which] + start] = 1.0
    return read
