"""The other side of a decision: completions of the group that took it as greedy decoding does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.policy.lm_head import head_logits
from oar_lightning.types import Rollouts


@torch.no_grad()
def mark_siblings(
    model: Any, rollouts: Rollouts, turns: Mapping[int, int], rows: list[int], scores: Float[Tensor, "B S"]
) -> None:
    """Score 1 where the completions of a group that did not turn took the decision at which another one turned.

    Of a completion's tokens that are the most probable one at a turning point, it is the one that was predicted from the state
    nearest (by its angle) to that of the turning point.
    """
    others = [row for row in rows if row not in turns]
    if not turns or not others:
        return
    states = rollouts.prediction_states
    if states is None:
        with evaluating(model):
            states = prediction_states(model, rollouts.attention_mask[rows], rollouts.token_ids[rows])
    else:
        states = states[rows]
    at = states[[row - rows[0] for row in turns], list(turns.values())]
    near = states[[row - rows[0] for row in others]]
    likely = head_logits(model, at).argmax(-1)
    same = (rollouts.token_ids[others] == likely[:, None, None]) & rollouts.response_mask[others]
    angle = torch.einsum("th,osh->tos", *(torch.nn.functional.normalize(x.float(), dim=-1) for x in (at, near)))
    place = angle.masked_fill(~same, -torch.inf).argmax(-1)
    turn, other = same.any(-1).nonzero(as_tuple=True)
    scores[torch.tensor(others, device=other.device)[other], place[turn, other]] = 1.0
