"""Texts that grow token by token, while rows come and go, against a pass of the model over each whole text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.decoders import SIZES
from support.toy import gpt2
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from oar_lightning.policy.decoder import GrowingTexts, growing_texts
from oar_lightning.policy.decoder.growing import ModuleTexts, PlainTexts
from oar_lightning.policy.language_model import base_model

UNGROUPED = SIZES | {"num_key_value_heads": 4}
GELU = Qwen2Config(**SIZES, hidden_act="gelu")


def lora() -> Any:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        Qwen2ForCausalLM(Qwen2Config(**SIZES)), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    return model.eval()


MODELS = {
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval(), PlainTexts),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).eval(), PlainTexts),
    "llama, ungrouped": (lambda: LlamaForCausalLM(LlamaConfig(**UNGROUPED)).eval(), PlainTexts),
    "float64": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).double().eval(), ModuleTexts),
    "eager": (lambda: Qwen2ForCausalLM._from_config(GELU, attn_implementation="eager").eval(), ModuleTexts),
    "lora": (lora, ModuleTexts),
    "learned positions": (lambda: gpt2().eval(), ModuleTexts),
    "alibi": (lambda: BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4)).eval(), ModuleTexts),
}


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    """The model's own hidden states of a text, without a cache."""
    return base_model(model).get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
@torch.no_grad()
def test_states_are_those_of_a_pass_over_the_whole_text(name: str, first: list[int]) -> None:
    torch.manual_seed(0)
    make, kind = MODELS[name]
    model = make()
    rng = torch.Generator().manual_seed(1)
    prompts = torch.randint(40, (3, 7), generator=rng)
    texts: GrowingTexts = growing_texts(model, torch.tensor(first), 7 + 12)
    assert type(texts) is kind
    read = texts(prompts)
    own = [prompts[row, first[row] :].tolist() for row in range(3)]

    def check(hidden: torch.Tensor) -> None:
        """The states of the last columns."""
        for ids, actual in zip(own, hidden, strict=True):
            expected = alone(model, ids)[-len(actual) :]
            torch.testing.assert_close(actual[-len(expected) :], expected, rtol=1e-4, atol=1e-4)

    check(read)
    for rows, columns in (([0, 1, 2, 0, 1, 2, 2], 1), ([0, 1, 6, 3, 4], 1), ([0, 1, 2, 3, 4], 3), ([4, 1], 1), ([1], 2)):
        texts.select(torch.tensor(rows))
        new = torch.randint(40, (len(rows), columns), generator=rng)
        own = [own[row] + ids for row, ids in zip(rows, new.tolist(), strict=True)]
        check(texts(new))
    assert texts.width == 7 + 8


@torch.no_grad()
def test_weights_and_embeddings_stay_as_they_are() -> None:
    """The plain decoder writes in place."""
    model = MODELS["qwen2"][0]()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    texts = growing_texts(model, torch.zeros(2, dtype=torch.long), 9)
    texts(torch.arange(8).view(2, 4))
    texts(torch.zeros(2, 1, dtype=torch.long))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
