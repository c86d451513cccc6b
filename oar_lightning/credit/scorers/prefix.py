"""Runs each prompt once for all its completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.policy.decoder import Decoder, Past, distinct_texts, empty_past, join, read_texts
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
    distinct, begins, owner = distinct_texts(token_ids, first)

    def read(chunk: list[int]) -> Past:
        rows = slice(chunk[0], chunk[-1] + 1)  # all rows have one length, so a chunk is a range of them
        return read_texts(model, decoder, distinct[rows], begins[rows])

    pasts = [past for _, past in token_budget.run_in_chunks([token_ids.shape[1]] * len(distinct), read)]
    return join(pasts), owner, len(distinct) * token_ids.shape[1]
