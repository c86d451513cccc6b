"""Half precision is for weights and passes of the model, not for the numbers around them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins import HalfPrecision, MixedPrecision

from oar_lightning.training.precision import float32_by_default, precision_of


def test_random_numbers_keep_their_digits_with_half_precision_weights() -> None:
    trainer = SimpleNamespace(precision_plugin=HalfPrecision("bf16-true"))
    with trainer.precision_plugin.forward_context():
        assert len(torch.rand(5000).unique()) < 1000, "what Lightning alone would draw tokens with"
    with precision_of(trainer):
        assert len(torch.rand(5000).unique()) > 4900
    assert torch.get_default_dtype() == torch.float32


def test_mixed_precision_stays_in_force() -> None:
    trainer = SimpleNamespace(precision_plugin=MixedPrecision("bf16-mixed", "cpu"))
    a = torch.ones(2, 2)
    with precision_of(trainer):
        assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32


def test_the_former_default_comes_back_after_an_error() -> None:
    @float32_by_default()
    def fails() -> None:
        raise ArithmeticError

    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ArithmeticError):
            fails()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
