"""Texts that grow token by token, while rows come and go, against a pass of the model over each whole text."""

from __future__ import annotations

import pytest
import torch
from support.growing_texts import GROWING, check_growth

from oar_lightning.policy.decoder import growing_texts
from oar_lightning.policy.decoder.growing import ModuleTexts, PlainTexts

PLAIN = ("qwen2", "qwen3", "llama, ungrouped")
"""Models that the plain decoder reads."""


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
@torch.no_grad()
def test_states_are_those_of_a_pass_over_the_whole_text(name: str, first: list[int]) -> None:
    torch.manual_seed(0)
    model = GROWING[name]()
    texts = growing_texts(model, torch.tensor(first), 7 + 12)
    assert type(texts) is (PlainTexts if name in PLAIN else ModuleTexts)
    check_growth(model, texts, first)


@torch.no_grad()
def test_weights_and_embeddings_stay_as_they_are() -> None:
    """The plain decoder writes in place."""
    model = GROWING["qwen2"]()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    texts = growing_texts(model, torch.zeros(2, dtype=torch.long), 9)
    texts(torch.arange(8).view(2, 4))
    texts(torch.zeros(2, 1, dtype=torch.long))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
