"""Products with weights that do not change: torch's own, and oneDNN's of weights in the order in which it reads them.

On a CPU the latter take two thirds of the time or less where few rows meet many weights, as in sampling, and about four fifths
of it for many rows (`python reports/packed_weights/measure.py`). Packing costs about as much as a product with a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

ROWS = 256
"""The rows of a product for which oneDNN chooses the order of the weights; other numbers are as fast in it."""

LEAST = 2**17
"""The fewest numbers of a matrix that is packed: a call of oneDNN takes some ten microseconds more than one of torch's."""


@dataclass(frozen=True)
class Weights:
    """A matrix W [O I] as torch keeps it; it may carry gradients."""

    matrix: Float[Tensor, "O I"]

    def __call__(self, x: Float[Tensor, "... I"], bias: Float[Tensor, " O"] | None = None) -> Float[Tensor, "... O"]:
        """x W' + b."""
        return linear(x, self.matrix, bias)

    def onto(
        self, total: Float[Tensor, "n S O"], x: Float[Tensor, "n S I"], bias: Float[Tensor, " O"] | None
    ) -> Float[Tensor, "n S O"]:
        """total + x W' + b. Where gradients are disabled `total` may be overwritten."""
        flat = total.flatten(0, 1)
        into = None if torch.is_grad_enabled() else flat
        sum_ = torch.addmm(flat, x.flatten(0, 1), self.matrix.T, out=into).view(total.shape)
        return sum_ if bias is None else sum_ + bias


@dataclass(frozen=True)
class PackedWeights(Weights):
    """Weights that get no gradient. Where gradients are disabled they are multiplied in oneDNN's order, into which the first
    such product puts a copy; scoring with a backward pass gains nothing by it."""

    @cached_property
    def packed(self) -> Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(self.matrix.contiguous(), ROWS)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled():
            return super().__call__(x, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")

    def onto(self, total: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            return super().onto(total, x, bias)
        return torch.ops.mkldnn._linear_pointwise.binary(x, total, self.packed, bias, "add")


def fixed_weights(matrix: Float[Tensor, "O I"]) -> Weights:
    """Weights that get no gradient, packed where oneDNN can do that: a CPU's in float32."""
    return (PackedWeights if can_pack(matrix) else Weights)(matrix.detach())


def can_pack(matrix: Tensor) -> bool:
    real = type(matrix) in (Tensor, torch.nn.Parameter)  # not one without values, of which only the memory is counted
    known = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    return known and real and matrix.device.type == "cpu" and matrix.dtype == torch.float32 and matrix.numel() >= LEAST
