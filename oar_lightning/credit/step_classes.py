"""Steps of completions told apart by whether they explore or commit, for an entropy term that is to leave the latter alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.credit.assign import as_taught
from oar_lightning.credit.predictions import predictions
from oar_lightning.policy.token_budget import unset_budget
from oar_lightning.types import Credit, Rollouts


def with_exploring_steps(model: Any, rollouts: Rollouts, credit: Credit, taught: Int[Tensor, " n"]) -> Credit:
    """The credit with an entropy factor of 1 for tokens of steps that explore, and of 0 for others.

    credit: of all completions. Those that are not `taught` would not be scored without an entropy term, and have no advantage.
    """
    mask = rollouts.reasoning_mask
    entropy = predictions(model, rollouts, mask, unset_budget("entropy.steps")).entropy
    explores = exploring(credit.importance, entropy, mask, rollouts.group_size)
    credit = as_taught(credit, rollouts, taught)
    return dataclasses.replace(credit, entropy_factor=explores.to(credit.advantages.dtype))


def exploring(
    scores: Float[Tensor, "B S"], entropy: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], group_size: int
) -> Bool[Tensor, "B S"]:
    """The tokens of steps that explore: steps of an entropy in the upper half of their group's steps, and of a score whose size
    is in the lower half.

    A step is a run of tokens with equal scores, its entropy the mean over them. Halves are divided by the median; what equals
    it belongs to both. Scores that are no numbers have no part in it, and their tokens do not explore. Tokens outside the mask
    do not explore. All definitions are ours.
    """
    out = torch.zeros_like(mask)
    for start in range(0, len(mask), group_size):
        rows, columns = mask[start : start + group_size].nonzero(as_tuple=True)
        if not len(rows):
            continue
        rows = rows + start
        values = scores[rows, columns]
        begins = torch.ones_like(values, dtype=torch.bool)
        begins[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
        number = begins.long().cumsum(0) - 1
        sums = torch.zeros(int(number[-1]) + 1, dtype=torch.float64, device=values.device)
        means = sums.index_add(0, number, entropy[rows, columns].double()) / number.bincount()
        sizes = values[begins].double().abs()
        known = ~sizes.isnan()
        if not known.any():
            continue
        explores = known & (means >= means[known].quantile(0.5)) & (sizes <= sizes[known].quantile(0.5))
        out[rows, columns] = explores[number]
    return out
