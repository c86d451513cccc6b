"""The caches of keys and values against that of transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import GPT2Config, MistralConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

from oar_lightning.policy.key_value_cache import RoomyLayer, new_cache, only_grows, select_rows

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIG = Qwen2Config(vocab_size=100, num_key_value_heads=2, **SIZES)


@pytest.mark.parametrize("limit", [None, 12])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@torch.no_grad()
def test_hidden_states_are_those_of_the_librarys_cache_in_half_its_memory(
    attention: str, dtype: torch.dtype | None, limit: int | None
) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM._from_config(CONFIG, attn_implementation=attention).eval()
    ids, mask = torch.randint(0, 100, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    mask[0, :3] = 0
    found = []
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        for cache in (DynamicCache(config=CONFIG), new_cache(CONFIG, limit)):
            parts = [
                model.model(ids[:, start:end], mask[:, :end], past_key_values=cache).last_hidden_state
                for start, end in pairwise((0, 7, 8, 12))
            ]
            kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            found.append((torch.cat(parts, 1), {tensor.dtype for tensor in kept}))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == {torch.float32}
    assert found[1][1] == {dtype or torch.float32}


def states(rows: int, columns: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, of different sizes as some families have them."""
    return torch.randn(rows, 2, columns, 3, generator=rng), torch.randn(rows, 2, columns, 5, generator=rng)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_come_and_go_leave_what_the_librarys_cache_holds(
    samples: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another order, and when the storage has grown several times."""
    monkeypatch.setattr("oar_lightning.policy.key_value_cache.LEAST_ROOM", 2)
    rng = torch.Generator().manual_seed(seed)
    caches = DynamicCache(config=CONFIG), new_cache(CONFIG, 40)
    storages = {}  # held, so that no later one has the address of a former one

    def append(rows: int, columns: int) -> None:
        for layer in range(3):
            new = states(rows, columns, rng)
            for expected, actual in zip(*(cache.update(*new, layer) for cache in caches), strict=True):
                assert torch.equal(actual, expected)

    def select(rows: torch.Tensor) -> None:
        caches[0].batch_select_indices(rows)
        select_rows(caches[1], rows)

    append(8, 5)
    select(torch.arange(8).repeat_interleave(samples))
    count = 8 * samples
    for step in range(35):
        append(count, 1)
        storage = caches[1].layers[0].keys.untyped_storage()
        storages[storage.data_ptr()] = storage
        if step % 4 == 0 and count > 2:
            count -= int(torch.randint(3, (1,), generator=rng))
            select(torch.randperm(caches[0].layers[0].keys.shape[0], generator=rng)[:count])
    assert caches[1].get_seq_length() == 40
    assert 3 < len(storages) < 12
    assert isinstance(caches[1].layers[0], RoomyLayer)
    assert caches[1].layers[0].room == 0


def test_rows_that_stay_are_not_copied() -> None:
    rng = torch.Generator().manual_seed(0)
    cache = new_cache(CONFIG, 9)
    for columns in (3, 1):
        for layer in range(3):
            cache.update(*states(6, columns, rng), layer)
    before, place = cache.layers[1].keys.clone(), cache.layers[1].keys.data_ptr()
    select_rows(cache, torch.tensor([0, 5, 2]))
    assert cache.layers[1].keys.data_ptr() == place
    assert torch.equal(cache.layers[1].keys, before[[0, 5, 2]])


def test_a_sliding_window_is_told_from_a_cache_that_only_grows() -> None:
    assert only_grows(new_cache(CONFIG))
    assert only_grows(new_cache(GPT2Config()))
    assert not only_grows(new_cache(MistralConfig(sliding_window=8, **SIZES)))
