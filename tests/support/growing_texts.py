"""Models whose texts grow token by token, while rows come and go, and passes over each whole text to hold them against."""

from __future__ import annotations

from collections.abc import Callable
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

from oar_lightning.policy.decoder import GrowingTexts
from oar_lightning.policy.language_model import base_model

UNGROUPED = SIZES | {"num_key_value_heads": 4}
GELU = Qwen2Config(**SIZES, hidden_act="gelu")


def lora() -> Any:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        Qwen2ForCausalLM(Qwen2Config(**SIZES)), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    return model.eval()


GROWING: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval(),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).eval(),
    "llama, ungrouped": lambda: LlamaForCausalLM(LlamaConfig(**UNGROUPED)).eval(),
    "float64": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).double().eval(),
    "eager": lambda: Qwen2ForCausalLM._from_config(GELU, attn_implementation="eager").eval(),
    "lora": lora,
    "learned positions": lambda: gpt2().eval(),
    "alibi": lambda: BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4)).eval(),
}


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    """The model's own hidden states of a text, without a cache."""
    device = model.get_input_embeddings().weight.device
    return base_model(model).get_decoder()(torch.tensor([ids], device=device), use_cache=False).last_hidden_state[0]


def check_growth(model: Any, texts: GrowingTexts, first: list[int]) -> None:
    """Let three texts grow while rows come and go, and hold each column's states against a pass over the whole text."""
    rng = torch.Generator().manual_seed(1)
    device = texts.first.device
    prompts = torch.randint(40, (3, 7), generator=rng)
    read = texts(prompts.to(device))
    own = [prompts[row, first[row] :].tolist() for row in range(3)]

    def check(hidden: torch.Tensor) -> None:
        """The states of the last columns."""
        for ids, actual in zip(own, hidden, strict=True):
            expected = alone(model, ids)[-len(actual) :]
            torch.testing.assert_close(actual[-len(expected) :], expected, rtol=1e-4, atol=1e-4)

    check(read)
    for rows, columns in (([0, 1, 2, 0, 1, 2, 2], 1), ([0, 1, 6, 3, 4], 1), ([0, 1, 2, 3, 4], 3), ([4, 1], 1), ([1], 2)):
        texts.select(torch.tensor(rows, device=device))
        new = torch.randint(40, (len(rows), columns), generator=rng)
        own = [own[row] + ids for row, ids in zip(rows, new.tolist(), strict=True)]
        check(texts(new.to(device)))
    assert texts.width == 7 + 8
