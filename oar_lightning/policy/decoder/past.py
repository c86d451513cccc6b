"""What a decoder keeps of the columns that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Past(NamedTuple):
    """Keys and values of the first T columns of N rows, layer by layer, and where each row's tokens begin (left padding)."""

    keys: tuple[Float[Tensor, "N g T d"], ...]
    values: tuple[Float[Tensor, "N g T d"], ...]
    first: Int[Tensor, " N"]

    @property
    def width(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def select(self, rows: Int[Tensor, " n"], width: int | None = None) -> Past:
        """The given rows, each as often as it is given, cut to their first columns."""
        if width == 0:
            return nothing_read(self.first[rows])
        keys, values = (tuple(layer[:, :, :width].index_select(0, rows) for layer in layers) for layers in self[:2])
        return Past(keys, values, self.first[rows])

    def detach(self) -> Past:
        keys, values = (tuple(layer.detach() for layer in layers) for layers in self[:2])
        return Past(keys, values, self.first)

    def real(self, width: int) -> Bool[Tensor, "N S"]:
        """Which of the first `width` columns, these and later ones, hold tokens."""
        return torch.arange(width, device=self.first.device) >= self.first[:, None]


def nothing_read(first: Int[Tensor, " N"]) -> Past:
    """The state before the first column."""
    return Past((), (), first)


def join(pasts: Sequence[Past]) -> Past:
    """The rows of several of the same width."""
    if len(pasts) == 1:
        return pasts[0]
    keys, values = (
        tuple(torch.cat(layers) for layers in zip(*parts, strict=True)) for parts in zip(*(p[:2] for p in pasts), strict=True)
    )
    return Past(keys, values, torch.cat([p.first for p in pasts]))


def seen_by(past: Past, new: int, alone_at: Int[Tensor, "N W"] | None) -> tuple[Bool[Tensor, "M W S"], Int[Tensor, "N W"]]:
    """Which of the read and the new columns each of the new ones attends to (M: N, or 1 where it is the same for all rows), and
    the new ones' positions.

    A padded column sees itself, so that nothing is divided by 0. Tokens that stand alone (`alone_at`: each in the place of
    one that was read) see the columns before their own, and themselves.
    """
    key = torch.arange(past.width + new, device=past.first.device)
    column = key[past.width :]
    itself = key == column[:, None]
    place = column[None] if alone_at is None else alone_at
    seen = (key < place[..., None]) | itself
    if past.first.any():
        seen = seen & ((key >= past.first[:, None, None]) | itself)
    return seen, (place - past.first[:, None]).clamp(min=0)
