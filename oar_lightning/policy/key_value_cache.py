"""The cache of keys and values to which passes of the policy append."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

LEAST_ROOM = 64
"""The columns by which full storage grows at least; it grows by a quarter, which keeps its copies few and its waste small."""


ALIGNED = 8
"""The columns of storage are a multiple of it, as a GPU's attention wants a mask's to be."""


class AutocastLayer(DynamicLayer):
    """Keys and values in autocast's dtype, in which attention computes.

    Rotary embeddings in float32 give float32 keys, and a cache of such keys makes the values float32, too. That takes twice
    the memory, and the whole cache would be cast again for every new token.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(*_in_autocast(key_states, value_states), *args, **kwargs)
        return keys, values


class RoomyLayer(DynamicLayer):
    """Keys and values at the front of storage with room for more: columns are written in place, and rows leave in place.

    Not for gradients. `keys` and `values` are views [n g T d] of the storage [N g C d]; C is at most `limit`, rounded up to a
    multiple of `ALIGNED`. Within `at_fixed_places` an update writes the columns that a tensor says, and returns all C.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.column: Tensor | None = None
        self._storage: list[Tensor] = []

    @property
    def storage(self) -> Tensor:
        """The keys' storage [N g C d]."""
        return self._storage[0]

    @property
    def room(self) -> int:
        """The columns that can be appended before the storage grows."""
        return self._storage[0].shape[2] - self.get_seq_length()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        new = _in_autocast(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(*new)
            self._storage = list(new)
            self.keys, self.values = new
            return self.keys, self.values
        if self.column is not None:
            for storage, states in zip(self._storage, new, strict=True):
                if self.column.ndim == 1:
                    storage[: len(states)].index_copy_(2, self.column, states)
                else:
                    each = torch.arange(len(states), device=states.device)[:, None]
                    storage[each, :, self.column] = states.transpose(1, 2)
            keys, values = (storage[: len(states)] for storage, states in zip(self._storage, new, strict=True))
            return keys, values
        rows, _, start, _ = self.keys.shape
        end = start + new[0].shape[2]
        self.make_room(end)
        for storage, columns in zip(self._storage, new, strict=True):
            storage[:rows, :, start:end] = columns
        self.set_view(rows, end)
        return self.keys, self.values

    def make_room(self, columns: int) -> None:
        """Move to larger storage unless it has so many columns."""
        if columns > self.storage.shape[2]:
            self._move(slice(None), self._columns(columns))

    def select(self, rows: Int[Tensor, " n"], moved: Int[Tensor, " m"]) -> None:
        """Row i becomes row ``rows[i]``; `moved` lists the i that are not ``rows[i]``."""
        width = self.get_seq_length()
        if len(rows) > len(self._storage[0]):
            self._move(rows, self._columns(width + 1))
        elif len(moved):
            for storage in self._storage:
                own = storage[:, :, :width]
                own[moved] = own[rows[moved]]
        self.set_view(len(rows), width)

    def _columns(self, needed: int) -> int:
        columns = max(needed, min(self.limit, needed + max(LEAST_ROOM, needed // 4)))
        return columns + -columns % ALIGNED

    def _move(self, rows: Int[Tensor, " m"] | slice, columns: int) -> None:
        """Give the rows new storage of so many columns: the keys, then the values, so that only one of them is there twice."""
        width = self.get_seq_length()
        for number, name in enumerate(("keys", "values")):
            states = getattr(self, name)[rows]
            self._storage[number] = states.new_empty(*states.shape[:2], columns, states.shape[3])
            self._storage[number][:, :, :width] = states
            setattr(self, name, self._storage[number][:, :, :width])

    def clear_room(self) -> None:
        """Write 0 where nothing is yet: memory may hold NaN, which no mask takes out of a sum."""
        for storage in self._storage:
            storage[:, :, self.get_seq_length() :].zero_()

    def set_view(self, rows: int, width: int) -> None:
        """Hold the storage's first rows and columns."""
        self.keys, self.values = (x[:rows, :, :width] for x in self._storage)


def _in_autocast(*states: Tensor) -> tuple[Tensor, ...]:
    kind = states[0].device.type
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in states) if torch.is_autocast_enabled(kind) else states


def new_cache(config: Any, limit: int | None = None) -> DynamicCache:
    """An empty cache for a model of this config. With `limit` it keeps room for so many columns in all (`RoomyLayer`)."""
    cache = DynamicCache(config=config)
    cache.layers = [
        layer if type(layer) is not DynamicLayer else AutocastLayer() if limit is None else RoomyLayer(limit)
        for layer in cache.layers
    ]
    return cache


def select_rows(cache: DynamicCache, rows: Int[Tensor, " n"]) -> None:
    """Row i of a cache of `RoomyLayer`s becomes row ``rows[i]``; only rows that change their place are copied."""
    moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
    for layer in cache.layers:
        layer.select(rows, moved)


@contextlib.contextmanager
def at_fixed_places(cache: DynamicCache, column: Int[Tensor, " 1"] | Int[Tensor, "n W"]) -> Iterator[None]:
    """Inside the block updates of `RoomyLayer`s write this column of all rows, or these of each row, and return the whole
    storage, so that a pass reads and writes the same places whatever the width is."""
    for layer in cache.layers:
        layer.column = column
    try:
        yield
    finally:
        for layer in cache.layers:
            layer.column = None


def only_grows(cache: DynamicCache) -> bool:
    """Whether every layer keeps plain, growing keys and values (no sliding window, no recurrent state)."""
    return bool(cache.layers) and all(type(layer) is AutocastLayer for layer in cache.layers)
