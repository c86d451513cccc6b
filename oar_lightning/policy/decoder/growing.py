"""Texts that grow at their ends: a decoder reads the new columns, the cache keeps the keys and values of all before them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.policy.decoder.past import added_mask
from oar_lightning.policy.decoder.plain import PlainDecoder
from oar_lightning.policy.key_value_cache import at_fixed_places, select_rows
from oar_lightning.policy.language_model import base_model, embed, new_cache
from oar_lightning.policy.lm_head import head_logits, head_matrix
from oar_lightning.policy.products import fixed_weights


class GrowingTexts(ABC):
    """Left-padded texts of n rows. Needs `can_share_prefixes`; without gradients.

    Args:
        first: the column of each row's first token.
        limit: the columns of the finished texts, at most.
    """

    def __init__(self, model: Any, first: Int[Tensor, " n"], limit: int) -> None:
        self.model = model
        self.cache = new_cache(model, limit)
        self.first, self.limit, self.width = first, limit, 0
        self._padded = bool(first.any())

    @torch.no_grad()
    def __call__(self, token_ids: Int[Tensor, "n W"]) -> Float[Tensor, "n W H"]:
        """Append columns; their final (normalised) hidden states, unusable where a column is padding."""
        columns = torch.arange(self.width, self.width + token_ids.shape[1], device=token_ids.device)
        positions = (columns - self.first[:, None]).clamp(min=0)
        hidden = self._read(token_ids, columns, positions)
        self.width += token_ids.shape[1]
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "n H"]) -> Float[Tensor, "n V"]:
        """Float32 (or float64) logits of the tokens that follow these final hidden states."""
        return head_logits(self.model, hidden)

    def select(self, rows: Int[Tensor, " m"]) -> None:
        """Row i becomes row ``rows[i]``; a row may be given several times. Rows that stay in their place are not copied."""
        select_rows(self.cache, rows)
        self.first = self.first[rows]
        self._padded = self._padded and bool(self.first.any())

    def _real(self, width: int) -> Bool[Tensor, "n S"]:
        return torch.arange(width, device=self.first.device) >= self.first[:, None]

    @abstractmethod
    def _read(
        self, token_ids: Int[Tensor, "n W"], columns: Int[Tensor, " W"], positions: Int[Tensor, "n W"]
    ) -> Float[Tensor, "n W H"]: ...


class ModuleTexts(GrowingTexts):
    """Texts that any decoder of `transformers` reads with its own modules."""

    def __init__(self, model: Any, first: Int[Tensor, " n"], limit: int) -> None:
        super().__init__(model, first, limit)
        self._decoder = base_model(model).get_decoder()
        self._takes_positions = "position_ids" in inspect.signature(self._decoder.forward).parameters

    def _read(self, token_ids: Tensor, columns: Tensor, positions: Tensor) -> Tensor:
        return self._decoder(
            input_ids=token_ids,
            attention_mask=self._real(self.width + len(columns)).long() if self._padded else None,
            past_key_values=self.cache,
            use_cache=True,
            **({"position_ids": positions} if self._takes_positions else {}),
        ).last_hidden_state


class PlainTexts(GrowingTexts):
    """Texts that the plain decoder reads."""

    def __init__(self, model: Any, decoder: PlainDecoder, first: Int[Tensor, " n"], limit: int) -> None:
        super().__init__(model, first, limit)
        self._decoder = decoder
        self._rotations = decoder.rotations(model.get_input_embeddings().weight, limit)
        matrix = head_matrix(model, decoder.norm)
        self._head = None if matrix is None else fixed_weights(matrix)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) if self._head is None else self._head(hidden)

    def _read(self, token_ids: Tensor, columns: Tensor, positions: Tensor) -> Tensor:
        embeddings = embed(self.model, token_ids)
        mask = self._mask(columns, embeddings.dtype) if self._padded or (self.width and len(columns) > 1) else None
        return self._decoder.append(self.cache, embeddings, self._rotations[positions][:, :, None], mask)

    def open_room(self) -> None:
        """Make room for all columns, for `read_at`, after which texts no longer grow by calls."""
        for layer in self.cache.layers:
            layer.make_room(self.limit)
            layer.clear_room()
            layer.set_view(len(self.first), self.limit)

    @torch.no_grad()
    def read_at(self, token_ids: Int[Tensor, "n W"], columns: Int[Tensor, "n W"]) -> Float[Tensor, "n W H"]:
        """Final (normalised) hidden states of tokens at these columns, which overwrite what is there. Each sees the columns of
        its row before it, and itself."""
        embeddings = embed(self.model, token_ids)
        keys = torch.arange(self.cache.layers[0].storage.shape[2], device=columns.device)
        seen = (keys >= self.first[:, None, None]) & (keys <= columns[:, :, None])
        mask = added_mask(seen, embeddings.dtype)
        rotations = self._rotations[columns - self.first[:, None]][:, :, None]
        with at_fixed_places(self.cache, columns):
            return self._decoder.append(self.cache, embeddings, rotations, mask)

    def _mask(self, columns: Int[Tensor, " W"], dtype: torch.dtype) -> Float[Tensor, "n 1 W S"]:
        """0 where a column sees another, else -inf. A padded column sees itself, so that nothing is divided by 0."""
        keys = torch.arange(self.width + len(columns), device=columns.device)
        seen = self._real(len(keys))[:, None]
        if len(columns) > 1:
            seen = (seen & (keys <= columns[:, None])) | (keys == columns[:, None])
        return added_mask(seen, dtype)
