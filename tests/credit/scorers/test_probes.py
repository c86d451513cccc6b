"""Distances between outcomes are held against float64."""

from __future__ import annotations

import torch

from oar_lightning.credit.scorers.probes import PROBES

PROBE = PROBES["answer_mean"]


def divergence(clean, other):
    return (clean.exp() * (clean - other)).sum(-1)


def test_small_distances_survive_float32():
    logits = 3 * torch.randn(20, 500)
    moved = logits + torch.logspace(-5, 0, 20)[:, None] * torch.randn(20, 500)
    expected = divergence(logits.double().log_softmax(-1), moved.double().log_softmax(-1))
    assert expected.min() < 1e-9
    actual = PROBE.distance(logits.log_softmax(-1), moved.log_softmax(-1))
    torch.testing.assert_close(actual.double()[4:], expected[4:], rtol=0.02, atol=0.0)
    torch.testing.assert_close(actual.double(), expected, rtol=2e-3, atol=1e-10)


def test_large_distances_stay_finite():
    clean = torch.tensor([[0.0, -300.0, 200.0, 1.0]]).log_softmax(-1)
    other = torch.tensor([[0.0, 300.0, -200.0, 1.0]]).log_softmax(-1).requires_grad_()
    gap = PROBE.gap(clean, other)
    torch.testing.assert_close(gap, divergence(clean, other))
    assert torch.autograd.grad(gap.sum(), other)[0].isfinite().all()
