"""Sets of reasoning tokens that are replaced together, and what becomes of the outcome."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.credit.scorers.oar_p.fills import FillName


class Sets(NamedTuple):
    """Sets of reasoning tokens: ``removed[i, j]`` is the j-th reasoning token of completion ``row[i]``."""

    row: Int[Tensor, " n"]
    removed: Bool[Tensor, "n R"]


class Outcome(Protocol):
    """The outcome of completions with sets of tokens replaced.

    Every row must have reasoning and an answer (`scorable_rows`). The value depends on the row's tokens, its set and the fill.
    """

    def __call__(self, sets: Sets, fill: FillName) -> Float[Tensor, " n"]: ...


def evaluate(outcome: Outcome, sets: Sets, fill: FillName) -> Float[Tensor, " n"]:
    """The outcomes of sets, of which equal ones are run once."""
    contents = np.packbits(sets.removed.cpu().numpy(), axis=1)
    index_of: dict[tuple[int, bytes], int] = {}
    places = [index_of.setdefault((r, c.tobytes()), len(index_of)) for r, c in zip(sets.row.tolist(), contents, strict=True)]
    first = torch.tensor(np.unique(places, return_index=True)[1], dtype=torch.long, device=sets.row.device)
    return outcome(Sets(sets.row[first], sets.removed[first]), fill)[places]
