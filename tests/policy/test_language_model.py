"""Positions and modes of a causal LM. Its hidden states are compared in test_lm_head.py, with the head on them."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2, phi3_longrope
from transformers import FalconConfig, FalconForCausalLM

from oar_lightning.policy.language_model import evaluating, position_ids, positions_of, turn_dropout_off


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


@torch.no_grad()
def test_no_text_may_be_longer_than_what_is_read_as_shorter_ones_are() -> None:
    """A row beside one of as many tokens is what it is alone; beside one of a token more it is not."""
    model, draw = phi3_longrope(24), torch.Generator().manual_seed(0)
    longest = positions_of(model)
    assert longest == 24
    row = torch.randint(1, 40, (1, 20), generator=draw)
    alone = model(row).logits[0]
    for beside, same in ((longest, True), (longest + 1, False)):
        ids = torch.cat([torch.nn.functional.pad(row, (0, beside - 20)), torch.randint(1, 40, (1, beside), generator=draw)])
        assert torch.allclose(model(ids).logits[0, :20], alone, atol=1e-9) == same
    assert positions_of(gpt2()) == 64
    model.config.max_position_embeddings = 20
    assert positions_of(model) == 20


def test_dropout_is_off_where_a_model_reads_its_rate_in_the_config() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = FalconForCausalLM(FalconConfig(**sizes, hidden_dropout=0.5, attention_dropout=0.5)).train()
    ids = torch.arange(12)[None]
    assert not torch.equal(model(ids).logits, model(ids).logits)
    turn_dropout_off(model)
    assert torch.equal(model(ids).logits, model.eval()(ids).logits)
