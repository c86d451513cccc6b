"""Products with weights on a CPU: torch's own, or those of oneDNN, which comes with torch, where they are faster.

Torch multiplies float32 by MKL, which uses half of the width of some processors' vectors; there oneDNN takes less than half of
its time for many rows (`python reports/packed_weights/measure.py`). Weights that do not change are put into the order in which
oneDNN reads them, which helps few rows most. Packing costs about as much as a product with a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

ROWS = 256
"""The rows of a product for which oneDNN chooses the order of the weights; other numbers are as fast in it."""

LEAST_WORK = 2**24
"""The fewest multiplications of a product that oneDNN makes. A call of it takes some ten microseconds more than torch's."""

LEAST = 2**16
"""The fewest numbers of a matrix that is packed."""


@dataclass(frozen=True)
class Weights:
    """A matrix W [O I] as torch keeps it; it may carry gradients."""

    matrix: Float[Tensor, "O I"]

    def __call__(self, x: Float[Tensor, "... I"], bias: Float[Tensor, " O"] | None = None) -> Float[Tensor, "... O"]:
        """x W' + b."""
        return multiply(x, self.matrix, bias)

    def rows(self, count: int) -> int:
        """With how many rows products of `count` rows are made. Who gives x so many, with rows of 0, spares each a copy. Up to
        an eighth more rows are then held for a backward pass, which no budget of tokens counts."""
        pays = count * self.matrix.numel() >= LEAST_WORK and onednn_can(self.matrix)
        return regular(count) if pays else count

    def onto(
        self, total: Float[Tensor, "n O"], x: Float[Tensor, "n I"], bias: Float[Tensor, " O"] | None
    ) -> Float[Tensor, "n O"]:
        """total + x W' + b. Where gradients are disabled `total` may be overwritten."""
        if onednn_pays(x, self.matrix):
            return _Product.apply(x, self.matrix, bias, total)
        sum_ = torch.addmm(total, x, self.matrix.T, out=None if torch.is_grad_enabled() else total)
        return sum_ if bias is None else sum_ + bias


@dataclass(frozen=True)
class PackedWeights(Weights):
    """Weights that get no gradient. Where gradients are disabled they are multiplied in oneDNN's order, into which the first
    such product puts a copy; scoring with a backward pass has none."""

    @cached_property
    def packed(self) -> Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(self.matrix.contiguous(), ROWS)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled():
            return super().__call__(x, bias)
        return _onednn(x, self.packed, bias)

    def rows(self, count: int) -> int:
        return super().rows(count) if torch.is_grad_enabled() else regular(count)

    def onto(self, total: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            return super().onto(total, x, bias)
        return _onednn(x, self.packed, bias, total)


def fixed_weights(matrix: Float[Tensor, "O I"]) -> Weights:
    """Weights that get no gradient, packed where oneDNN can do that and they are large enough."""
    return (PackedWeights if matrix.numel() >= LEAST and onednn_can(matrix) else Weights)(matrix.detach())


def multiply(
    x: Float[Tensor, "... I"], matrix: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "... O"]:
    """x W' + b, with first derivatives. The matrix may be a transposed view."""
    return _Product.apply(x, matrix, bias, None) if onednn_pays(x, matrix) else linear(x, matrix, bias)


def onednn_pays(x: Tensor, matrix: Tensor) -> bool:
    """Whether oneDNN can make the product x W', and it is large enough."""
    return x.numel() * len(matrix) >= LEAST_WORK and onednn_can(matrix) and x.dtype == matrix.dtype


def onednn_can(matrix: Tensor) -> bool:
    """Whether oneDNN is there, and the matrix is one of a CPU in float32."""
    real = type(matrix) in (Tensor, torch.nn.Parameter)  # not one without values, of which only the memory is counted
    if not real or matrix.device.type != "cpu" or matrix.dtype != torch.float32:
        return False
    as_it_is = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
    return as_it_is and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def _onednn(x: Tensor, matrix: Tensor, bias: Tensor | None = None, total: Tensor | None = None) -> Tensor:
    """[total +] x W' + b.

    oneDNN compiles a kernel for each number of rows that it meets, which takes longer than many a product. So rows of 0 make
    up one of few numbers.
    """
    rows = x.numel() // x.shape[-1]
    if regular(rows) == rows:
        if total is None:
            return torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, total, matrix, bias, "add")
    padded = with_rows(x.reshape(rows, -1), regular(rows))
    out = torch.ops.mkldnn._linear_pointwise(padded, matrix, bias, "none", [], "")[:rows].view(*x.shape[:-1], -1)
    return out if total is None else out.add_(total)


def with_rows(x: Float[Tensor, "n I"], count: int) -> Float[Tensor, "m I"]:
    """x, and behind it as many rows of 0 as make `count` rows; x itself where there are so many already."""
    return x if len(x) == count else pad(x, (0, 0, 0, count - len(x)))


def regular(rows: int) -> int:
    """The next of few numbers, eight of each octave, which is larger by less than an eighth."""
    step = 2 ** max(0, rows.bit_length() - 4)
    return rows + -rows % step


class _Product(torch.autograd.Function):
    """[total +] x W' + b. Keeps no more than the derivatives that are asked for need."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, total: Tensor | None) -> Tensor:
        of_x, of_matrix, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_matrix else None, matrix if of_x else None)
        return _onednn(x, matrix, bias, total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        of_x, of_matrix, of_bias, of_total = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        return (
            multiply(gradient, matrix.T) if of_x else None,
            outer(flat, x.flatten(0, -2)) if of_matrix else None,
            flat.sum(0) if of_bias else None,
            gradient if of_total else None,
        )


def outer(left: Float[Tensor, "n O"], right: Float[Tensor, "n I"]) -> Float[Tensor, "O I"]:
    """The sum over rows of their outer products, left' right, without gradients."""
    if left.shape[1] > right.shape[1]:  # oneDNN is faster with the smaller side as its rows
        return outer(right, left).T
    if not onednn_pays(left.T, right.T):
        return left.T @ right
    rows = regular(len(left))
    return _onednn(with_rows(left, rows).T, with_rows(right, rows).T)


def add_outer(total: Float[Tensor, "O I"], left: Float[Tensor, "n O"], right: Float[Tensor, "n I"]) -> None:
    """Add left' right in place, where torch can without holding it: of a large vocabulary it is large."""
    if total.dtype == left.dtype and not onednn_pays(left.T, right.T):
        total.addmm_(left.T, right)
    else:
        total += outer(left, right)
