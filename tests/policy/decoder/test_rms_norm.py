"""x / rms(x) against torch's own and finite differences."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.policy.decoder.rms_norm import rms_norm

EPS = torch.tensor(1e-6, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_it_and_its_gradient_are_those_of_torch(scale: float) -> None:
    x = (scale * torch.randn(3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).requires_grad_()
    upstream = torch.linspace(-1, 1, 3 * 5 * 7, dtype=torch.float64).view(7, 3, 5).permute(1, 2, 0)
    expected = torch.nn.functional.rms_norm(x, (7,), eps=EPS.item())
    actual = rms_norm(x, EPS)
    torch.testing.assert_close(actual, expected)
    for own, other in zip(*(torch.autograd.grad(out, x, upstream) for out in (actual, expected)), strict=True):
        torch.testing.assert_close(own, other)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, EPS), expected)


def test_its_gradient_is_that_of_finite_differences() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, torch.tensor(0.1, dtype=torch.float64)), x)


def test_a_row_of_zeros_has_a_gradient() -> None:
    x = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(rms_norm(x, torch.tensor(0.25, dtype=torch.float64)).sum(), x)
    torch.testing.assert_close(gradient, torch.full((1, 3), 2.0, dtype=torch.float64))
