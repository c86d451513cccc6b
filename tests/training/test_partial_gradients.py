"""Gradients of a pass that ran out of memory are taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oar_lightning.training.partial_gradients import PartialGradients


def out() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Break(torch.autograd.Function):
    """Runs out of memory on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        raise out()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_gradient_that_broke_off_counts_once(layers: int) -> None:
    """The layers above the break have the gradient of all rows already, those below it of none."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(4)]
    rows = torch.randn(6, 4, dtype=torch.float64)

    def loss(chunk: list[int], broken: int | None = None) -> torch.Tensor:
        x = rows[chunk]
        for number, weight in enumerate(weights):
            x = torch.tanh(x @ weight)
            x = Break.apply(x) if number + 1 == broken else x
        return x.sum()

    loss([*range(6)]).backward()
    expected = [w.grad.clone() for w in weights if w.grad is not None]
    for w in weights:
        w.grad = None
    gradients = PartialGradients(weights, 6)
    with pytest.raises(torch.OutOfMemoryError), gradients.of(range(6)) as arguments:
        loss([*range(6)], broken=layers).backward(**arguments)
    assert arguments == {}
    assert [w.grad is not None for w in weights] == [False] * layers + [True] * (4 - layers)
    for chunk in ([0, 1, 2], [3, 4]):
        with gradients.of(chunk) as arguments:
            loss(chunk).backward(**arguments)
    with pytest.raises(torch.OutOfMemoryError), gradients.of([5]) as arguments:
        loss([5], broken=1).backward(**arguments)
    with gradients.of([5]) as arguments:
        assert len(arguments["inputs"]) == 1
        loss([5]).backward(**arguments)
    with gradients.of([5]) as arguments:
        assert arguments is None, "a pass that broke off behind the last weight has added all"
    assert not any(w._post_accumulate_grad_hooks for w in weights)
    for w, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(w.grad, gradient, rtol=1e-12, atol=1e-12)
