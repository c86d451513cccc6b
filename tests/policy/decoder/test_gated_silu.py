"""silu(gate) * up against torch's own composition and finite differences."""

from __future__ import annotations

import torch

from oar_lightning.policy.decoder.gated_silu import gated_silu


def test_it_and_its_gradient_are_those_of_torch() -> None:
    gate_up = torch.randn(3, 5, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    upstream = torch.linspace(-1, 1, 3 * 5 * 7, dtype=torch.float64).view(7, 3, 5).permute(1, 2, 0)
    gate, up = gate_up.chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    actual = gated_silu(gate_up)
    torch.testing.assert_close(actual, expected)
    for own, other in zip(*(torch.autograd.grad(out, gate_up, upstream) for out in (actual, expected)), strict=True):
        torch.testing.assert_close(own, other)
    assert torch.autograd.gradcheck(gated_silu, gate_up)
    with torch.no_grad():
        torch.testing.assert_close(gated_silu(gate_up.clone()), expected)
