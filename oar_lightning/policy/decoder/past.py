"""The keys and values that a decoder keeps of the columns that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.policy.attention import BLOCK, QueryBlock


class Past(NamedTuple):
    """Keys and values of the first T columns of N left-padded rows, layer by layer; ``first``: column of each row's first
    token."""

    keys: tuple[Float[Tensor, "N g T d"], ...]
    values: tuple[Float[Tensor, "N g T d"], ...]
    first: Int[Tensor, " N"]

    @property
    def width(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def select(self, rows: Int[Tensor, " n"], width: int | None = None) -> Past:
        """The given rows (a row may be given several times), cut to their first `width` columns; None: all columns."""
        if width == 0:
            return empty_past(self.first[rows])
        keys, values = (tuple(layer[:, :, :width].index_select(0, rows) for layer in layers) for layers in self[:2])
        return Past(keys, values, self.first[rows])

    def until(self, rows: Int[Tensor, " n"], ends: Int[Tensor, " n"]) -> Past:
        """The given rows, of row i the columns before ``ends[i]``, moved to the right so that all end together.

        Positions count from a row's first token and stay.
        """
        width = int(ends.max())
        moved = width - ends
        if not moved.any():
            return self.select(rows, width)
        columns = (torch.arange(width, device=ends.device) - moved[:, None]).clamp(min=0)[:, None, :, None]
        keys, values = (
            tuple(
                layer[:, :, :width].index_select(0, rows).gather(2, columns.expand(-1, layer.shape[1], -1, layer.shape[3]))
                for layer in layers
            )
            for layers in self[:2]
        )
        return Past(keys, values, self.first[rows] + moved)

    def detach(self) -> Past:
        keys, values = (tuple(layer.detach() for layer in layers) for layers in self[:2])
        return Past(keys, values, self.first)

    def real(self, width: int) -> Bool[Tensor, "N S"]:
        """A mask of the first `width` columns, True where they hold tokens; `width` may exceed that of the past."""
        return torch.arange(width, device=self.first.device) >= self.first[:, None]


def empty_past(first: Int[Tensor, " N"]) -> Past:
    """The past of rows of which no column has been read."""
    return Past((), (), first)


def join(pasts: Sequence[Past]) -> Past:
    """The rows of several pasts of the same width as one past."""
    if len(pasts) == 1:
        return pasts[0]
    keys, values = (
        tuple(torch.cat(layers) for layers in zip(*parts, strict=True)) for parts in zip(*(p[:2] for p in pasts), strict=True)
    )
    return Past(keys, values, torch.cat([p.first for p in pasts]))


def visible_columns(
    past: Past, new: int, alone_at: Int[Tensor, "N W"] | None
) -> tuple[Bool[Tensor, "M W S"], Int[Tensor, "N W"]]:
    """The attention mask from `new` new columns to all columns (those of the past, then the new ones), and the new columns'
    positions.

    M is N, or 1 where the mask is the same for all rows. A padded column sees itself, so that nothing is divided by 0. With
    `alone_at` each new token replaces that column of the past by itself: it sees the columns before, and itself.
    """
    key = torch.arange(past.width + new, device=past.first.device)
    column = key[past.width :]
    itself = key == column[:, None]
    place = column[None] if alone_at is None else alone_at
    seen = (key < place[..., None]) | itself
    if past.first.any():
        seen = seen & ((key >= past.first[:, None, None]) | itself)
    return seen, (place - past.first[:, None]).clamp(min=0)


def added_mask(seen: Bool[Tensor, "n W S"], dtype: torch.dtype) -> Float[Tensor, "n 1 W S"]:
    """What is added to the scores of attention: 0 where a column sees another, else -inf."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None]


def query_blocks(past: Past, new: int, alone_at: Int[Tensor, "N W"] | None) -> list[QueryBlock] | None:
    """The blocks of long attention from `new` new columns; see `visible_columns`. None where the columns are few."""
    if new < 2 * BLOCK:
        return None
    blocks = [slice(start, min(start + BLOCK, new)) for start in range(0, new, BLOCK)]
    width = past.width
    if alone_at is None:
        return [QueryBlock(block, (slice(0, width + block.stop),)) for block in blocks]
    ends = torch.stack([alone_at[:, block].max() for block in blocks]).tolist()
    return [
        QueryBlock(block, (slice(0, end), slice(width + block.start, width + block.stop)))
        for block, end in zip(blocks, ends, strict=True)
    ]
