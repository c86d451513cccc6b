"""Products with weights that do not change: torch's own, and oneDNN's of weights in the order in which it reads them.

On a CPU the latter take two thirds of the time or less where few rows meet many weights, as in sampling, and about five sixths
of it for many rows (`python reports/packed_weights/measure.py`). Packing costs about as much as one product with few rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

ROWS = 256
"""The rows of a product for which oneDNN chooses the order of the weights; other numbers are as fast in it."""

LEAST = 2**17
"""The fewest numbers of a matrix that is packed: a call of oneDNN takes some ten microseconds more than one of torch's."""


class Weights(ABC):
    """A matrix W [O I] of weights."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "... I"], bias: Float[Tensor, " O"] | None = None) -> Float[Tensor, "... O"]:
        """x W' + b."""

    @abstractmethod
    def onto(
        self, total: Float[Tensor, "n S O"], x: Float[Tensor, "n S I"], bias: Float[Tensor, " O"] | None
    ) -> Float[Tensor, "n S O"]:
        """total + x W' + b. Where gradients are disabled `total` may be overwritten."""


@dataclass(frozen=True)
class PlainWeights(Weights):
    """Weights as torch keeps them; they may carry gradients."""

    matrix: Float[Tensor, "O I"]

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, self.matrix, bias)

    def onto(self, total: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        flat = total.flatten(0, 1)
        into = None if torch.is_grad_enabled() else flat
        sum_ = torch.addmm(flat, x.flatten(0, 1), self.matrix.T, out=into).view(total.shape)
        return sum_ if bias is None else sum_ + bias


@dataclass(frozen=True)
class PackedWeights(Weights):
    """Weights in oneDNN's order. They have no gradient; what they are multiplied with may have one."""

    packed: Tensor

    @cached_property
    def transposed(self) -> Tensor:
        """W' in oneDNN's order, for the gradient of x."""
        return _packed(self.packed.to_dense().T.contiguous())

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return _Product.apply(x, bias, self)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")

    def onto(self, total: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() and (x.requires_grad or total.requires_grad):
            return total + self(x, bias)
        return torch.ops.mkldnn._linear_pointwise.binary(x, total, self.packed, bias, "add")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, weights: PackedWeights) -> Tensor:
        ctx.weights = weights
        return torch.ops.mkldnn._linear_pointwise(x, weights.packed, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.ops.mkldnn._linear_pointwise(gradient, ctx.weights.transposed, None, "none", [], ""), None, None


def fixed_weights(matrix: Float[Tensor, "O I"]) -> Weights:
    """Weights that get no gradient, packed where oneDNN can do that: a CPU's in float32."""
    return PackedWeights(_packed(matrix)) if can_pack(matrix) else PlainWeights(matrix.detach())


def can_pack(matrix: Tensor) -> bool:
    real = type(matrix) in (Tensor, torch.nn.Parameter)  # not one without values, of which only the memory is counted
    known = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    return known and real and matrix.device.type == "cpu" and matrix.dtype == torch.float32 and matrix.numel() >= LEAST


def _packed(matrix: Float[Tensor, "O I"]) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(matrix.detach().contiguous(), ROWS)
