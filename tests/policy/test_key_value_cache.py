"""The cache of keys and values against that of transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import GPT2Config, MistralConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

from oar_lightning.policy.key_value_cache import new_cache, only_grows
from oar_lightning.policy.language_model import cached_hidden_states

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIG = Qwen2Config(vocab_size=100, num_key_value_heads=2, **SIZES)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@torch.no_grad()
def test_hidden_states_are_those_of_the_librarys_cache_in_half_its_memory(attention: str, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM._from_config(CONFIG, attn_implementation=attention).eval()
    ids, mask = torch.randint(0, 100, (3, 12)), torch.ones(3, 12, dtype=torch.bool)
    mask[0, :3] = False
    found = []
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        for cache in (DynamicCache(config=CONFIG), new_cache(CONFIG)):
            parts = [
                cached_hidden_states(model, cache, mask[:, :end], ids[:, start:end]) for start, end in pairwise((0, 7, 8, 12))
            ]
            kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            found.append((torch.cat(parts, 1), {tensor.dtype for tensor in kept}))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == {torch.float32}
    assert found[1][1] == {dtype or torch.float32}


def test_a_sliding_window_is_told_from_a_cache_that_only_grows() -> None:
    assert only_grows(new_cache(CONFIG))
    assert only_grows(new_cache(GPT2Config()))
    assert not only_grows(new_cache(MistralConfig(sliding_window=8, **SIZES)))
