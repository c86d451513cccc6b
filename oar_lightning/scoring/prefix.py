"""Keys and values of prefixes, computed once and shared by many continuations."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.language_model import base_model, new_cache


class SharedPrefix:
    """The states of left-aligned rows up to a position that only moves forward. Needs `can_share_prefixes`.

    Padding on the right needs no mask: attention is causal, so no real token ever sees it.
    """

    def __init__(self, model: Any, token_ids: Int[Tensor, "N S"]) -> None:
        self._decoder = base_model(model).get_decoder()
        self._model = model
        self._positioned = "position_ids" in inspect.signature(self._decoder.forward).parameters
        self._token_ids = token_ids
        self._cache = new_cache(self._model)
        self.length = 0

    def advance(self, length: int) -> int:
        """Move the end of the prefix to `length`; returns the tokens that this ran."""
        new = self._token_ids[:, self.length : length]
        if new.numel():
            self._forward(self._cache, new, self.length)
            self.length = length
        return new.numel()

    def hidden_after(self, rows: Int[Tensor, " n"], suffix_ids: Int[Tensor, "n W"]) -> Float[Tensor, "n W H"]:
        """Hidden states of the suffixes, each continuing the prefix of its row; the prefix stays as it is."""
        cache = new_cache(self._model)
        for index, layer in enumerate(self._cache.layers):
            if self.length:
                cache.update(layer.keys[rows], layer.values[rows], index)
        return self._forward(cache, suffix_ids, self.length)

    def _forward(self, cache: Any, token_ids: Int[Tensor, "n W"], start: int) -> Float[Tensor, "n W H"]:
        positions: dict[str, Any] = {}
        if self._positioned:
            positions["position_ids"] = torch.arange(start, start + token_ids.shape[1], device=token_ids.device)[None]
        return self._decoder(input_ids=token_ids, past_key_values=cache, use_cache=True, **positions).last_hidden_state
