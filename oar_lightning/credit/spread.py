"""How far masked scores lie apart."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def centred_and_std(
    scores: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], size: int
) -> tuple[Float[Tensor, "G n S"], Float[Tensor, "G 1 1"]]:
    """The masked scores of each `size` consecutive rows minus their mean, 0 outside the mask; and their standard deviation
    (not an estimate), which is exactly 0 where they are equal: centring leaves rounding errors."""
    values, inside = (x.view(-1, size, x.shape[1]) for x in (scores, mask))
    values = values.masked_fill(~inside, 0.0)
    count = inside.sum((1, 2), keepdim=True).clamp(min=1)
    centred = (values - values.sum((1, 2), keepdim=True) / count).masked_fill(~inside, 0.0)
    std = (centred.square().sum((1, 2), keepdim=True) / count).sqrt()
    top, bottom = (values.masked_fill(~inside, fill) for fill in (-torch.inf, torch.inf))
    differ = top.amax((1, 2), keepdim=True) > bottom.amin((1, 2), keepdim=True)
    return centred, std.masked_fill(~differ, 0.0)
