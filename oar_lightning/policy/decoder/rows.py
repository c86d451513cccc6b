"""Chosen rows of a pass, of which the columns of all texts are the rows of one matrix."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from oar_lightning.policy.products import with_rows


def pick_rows(x: Float[Tensor, "n I"], index: Int[Tensor, " k"], count: int) -> Float[Tensor, "m I"]:
    """The rows of distinct indices, and behind them as many rows of 0 as make `count` rows."""
    return _Picked.apply(x, index, count)


class _Picked(torch.autograd.Function):
    """Torch's own backward pass adds row by row, since an index may come twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return with_rows(x.index_select(0, index), count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        of_x = gradient.new_zeros(ctx.rows, gradient.shape[1])
        return of_x.index_copy_(0, index, gradient[: len(index)]), None, None
