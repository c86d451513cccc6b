"""Prompts read once for all their completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.decoder import Decoder, Past, join, nothing_read
from oar_lightning.language_model import embed


@torch.no_grad()
def read_prompts(
    model: Any, decoder: Decoder, token_ids: Int[Tensor, "N T"], first: Int[Tensor, " N"], token_budget: int
) -> tuple[Past, Int[Tensor, " N"], int]:
    """The past of each different row (columns before `first` are padding), which of these each row is, and the tokens that went
    through the model. No column: nothing is read."""
    if not token_ids.shape[1]:
        return nothing_read(first), torch.arange(len(first), device=first.device), 0
    unique, owner = torch.cat([first[:, None], token_ids], 1).unique(dim=0, return_inverse=True)
    pasts = []
    for some in unique.split(max(1, token_budget // token_ids.shape[1])):
        unread = torch.zeros_like(some[:, :1]), torch.ones_like(some[:, :1], dtype=torch.bool)
        _, past = decoder(nothing_read(some[:, 0]), embed(model, some[:, 1:]), unread, keep=True)
        assert past is not None
        pasts.append(past)
    return join(pasts), owner, len(unique) * token_ids.shape[1]
