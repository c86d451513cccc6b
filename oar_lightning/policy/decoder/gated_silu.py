"""silu(gate) * up, of which a backward pass keeps no more than its input."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu


def gated_silu(gate_up: Float[Tensor, "... 2F"]) -> Float[Tensor, "... F"]:
    """silu(gate) * up, with first derivatives. Where gradients are disabled the gate is overwritten."""
    return _GatedSilu.apply(gate_up) if torch.is_grad_enabled() else _product(gate_up, inplace=True)


def _product(gate_up: Tensor, inplace: bool) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate, inplace=inplace).mul_(up)


class _GatedSilu(torch.autograd.Function):
    """Makes silu(gate) again for the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _product(gate_up, inplace=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        of_both = torch.empty_like(gate_up)
        of_gate, of_up = of_both.chunk(2, -1)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
        torch.mul(silu(gate), gradient, out=of_up)
        return of_both
