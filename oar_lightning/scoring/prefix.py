"""Keys and values of prefixes, computed once and shared by many continuations."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.attention import ReadAt
from oar_lightning.language_model import (
    cache_rows,
    cached_hidden_states,
    can_share_prefixes,
    hidden_states,
    join_caches,
    new_cache,
)
from oar_lightning.types import Rollouts


class SharedPrefix:
    """The states of left-aligned rows up to a position that only moves forward. Needs `can_share_prefixes`.

    Padding on the right needs no mask: attention is causal, so no real token ever sees it.
    """

    def __init__(self, model: Any, token_ids: Int[Tensor, "N S"]) -> None:
        self._model = model
        self._token_ids = token_ids
        self._cache = new_cache(model)
        self.length = 0

    def advance(self, length: int) -> int:
        """Move the end of the prefix to `length`; returns the tokens that this ran."""
        if length <= self.length:
            return 0
        if self.length:
            new = self._token_ids[:, self.length : length]
            self._run(self._cache, new)
        else:  # completions of one prompt begin alike
            new, owner = self._token_ids[:, :length].unique(dim=0, return_inverse=True)
            self._run(self._cache, new)
            self._cache = cache_rows(self._model, self._cache, owner)
        self.length = length
        return new.numel()

    def hidden_after(
        self, rows: Int[Tensor, " n"], suffix_ids: Int[Tensor, "n W"], read_at: ReadAt | None = None
    ) -> Float[Tensor, "n W H"]:
        """Hidden states of the suffixes, each continuing the prefix of its row; the prefix stays as it is."""
        return self.continued(rows, suffix_ids, read_at)[0]

    def continued(
        self, rows: Int[Tensor, " n"], suffix_ids: Int[Tensor, "n W"], read_at: ReadAt | None = None
    ) -> tuple[Float[Tensor, "n W H"], Any]:
        """The same, and the cache of prefix and suffix."""
        cache = cache_rows(self._model, self._cache, rows)
        return self._run(cache, suffix_ids, read_at), cache

    def _run(self, cache: Any, token_ids: Int[Tensor, "n W"], read_at: ReadAt | None = None) -> Float[Tensor, "n W H"]:
        everything = torch.ones(len(token_ids), self.length + token_ids.shape[1], dtype=torch.bool, device=token_ids.device)
        return cached_hidden_states(self._model, cache, everything, token_ids, read_at=read_at)


class PromptStates:
    """The states of the columns before the first completion token, run once for each different prompt of a batch.

    Where the model's cache cannot be shared (`can_share_prefixes`), nothing is run ahead and `start` is 0. ``tokens``: that
    went through the model.
    """

    def __init__(self, model: Any, rollouts: Rollouts, token_budget: int) -> None:
        self._model = model
        self._attention = rollouts.attention_mask
        self._cache: Any = None
        self.start = int(rollouts.response_mask.any(0).long().argmax()) if can_share_prefixes(model) else 0
        self.tokens = 0
        if not self.start:
            return
        ids, attention = rollouts.token_ids[:, : self.start], rollouts.attention_mask[:, : self.start]
        unique, self._owner = torch.cat([ids, attention.to(ids)], 1).unique(dim=0, return_inverse=True)
        self.tokens = len(unique) * self.start
        caches = []
        with torch.no_grad():
            for some in unique.split(max(1, token_budget // self.start)):
                caches.append(new_cache(model))
                cached_hidden_states(model, caches[-1], some[:, self.start :].bool(), some[:, : self.start])
        self._cache = join_caches(model, caches)

    def hidden_states(
        self, rows: Int[Tensor, " n"], inputs_embeds: Float[Tensor, "n W H"], read_at: ReadAt | None = None
    ) -> Float[Tensor, "n W H"]:
        """Hidden states of the W columns from `start` on of the given rows, given their embeddings. The prompts' states stay
        as they are."""
        attention = self._attention[rows, : self.start + inputs_embeds.shape[1]]
        if self._cache is None:
            return hidden_states(self._model, attention, inputs_embeds=inputs_embeds, read_at=read_at)
        cache = cache_rows(self._model, self._cache, self._owner[rows])
        return cached_hidden_states(self._model, cache, attention, inputs_embeds=inputs_embeds, read_at=read_at)
