"""Prompts read once for all their completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.policy.decoder import Decoder, Past, join, nothing_read
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget


@torch.no_grad()
def read_prompts(
    model: Any, decoder: Decoder, token_ids: Int[Tensor, "N T"], first: Int[Tensor, " N"], token_budget: TokenBudget
) -> tuple[Past, Int[Tensor, " N"], int]:
    """The past of each different row (columns before `first` are padding), which of these each row is, and the tokens that went
    through the model. No column: nothing is read."""
    if not token_ids.shape[1]:
        return nothing_read(first), torch.arange(len(first), device=first.device), 0
    unique, owner = torch.cat([first[:, None], token_ids], 1).unique(dim=0, return_inverse=True)

    def read(rows: list[int]) -> Past:
        some = unique[rows[0] : rows[-1] + 1]  # of equal length, hence in order
        unread = torch.zeros_like(some[:, :1]), torch.ones_like(some[:, :1], dtype=torch.bool)
        _, past = decoder(nothing_read(some[:, 0]), embed(model, some[:, 1:]), unread, keep=True)
        assert past is not None
        return past

    pasts = [past for _, past in token_budget.run_in_chunks([token_ids.shape[1]] * len(unique), read)]
    return join(pasts), owner, len(unique) * token_ids.shape[1]
