"""Runs each prompt once for all its completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.policy.decoder import Decoder, Past, empty_past, join
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget

PREFIX_DISCOUNT = 8
"""What goes on from a prefix has a copy of its keys and values; so many prefix tokens count as one in a token budget."""


@torch.no_grad()
def read_prompts(
    model: Any, decoder: Decoder, token_ids: Int[Tensor, "N T"], first: Int[Tensor, " N"], token_budget: TokenBudget
) -> tuple[Past, Int[Tensor, " N"], int]:
    """The past of each distinct row, for each row the index of its past, and the number of tokens that went through the model.

    Columns before `first` are padding. Rows without columns leave an empty past.
    """
    if not token_ids.shape[1]:
        return empty_past(first), torch.arange(len(first), device=first.device), 0
    distinct, owner = torch.cat([first[:, None], token_ids], 1).unique(dim=0, return_inverse=True)

    def read(chunk: list[int]) -> Past:
        rows = distinct[chunk[0] : chunk[-1] + 1]  # all rows have one length, so a chunk is a range of them
        read_at = torch.zeros_like(rows[:, :1]), torch.ones_like(rows[:, :1], dtype=torch.bool)  # its state is not used
        _, past = decoder(empty_past(rows[:, 0]), embed(model, rows[:, 1:]), read_at, keep=True)
        assert past is not None
        return past

    pasts = [past for _, past in token_budget.run_in_chunks([token_ids.shape[1]] * len(distinct), read)]
    return join(pasts), owner, len(distinct) * token_ids.shape[1]
