"""The cache of keys and values to which passes of the policy append."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class AutocastLayer(DynamicLayer):
    """Keys and values in autocast's dtype, in which attention computes.

    Rotary embeddings in float32 give float32 keys, and a cache of such keys makes the values float32, too. That takes twice
    the memory, and the whole cache would be cast again for every new token.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kind = key_states.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            key_states, value_states = key_states.to(dtype), value_states.to(dtype)
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys, values


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model of this config."""
    cache = DynamicCache(config=config)
    cache.layers = [AutocastLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def only_grows(cache: DynamicCache) -> bool:
    """Whether every layer keeps plain, growing keys and values (no sliding window, no recurrent state)."""
    return bool(cache.layers) and all(type(layer) is AutocastLayer for layer in cache.layers)
