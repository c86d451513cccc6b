"""Positions and modes of a causal LM. Its hidden states are compared in test_lm_head.py, with the head on them."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2

from oar_lightning.policy.language_model import evaluating, position_ids


def test_position_ids():
    attention = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
    assert position_ids(attention).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 4, 5], [0] * 6]


def test_evaluating_restores_every_submodule_even_after_an_error():
    model = gpt2()
    model.transformer.h[0].attn.eval()
    before = {name: module.training for name, module in model.named_modules()}

    def fail_inside():
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert {name: module.training for name, module in model.named_modules()} == before
