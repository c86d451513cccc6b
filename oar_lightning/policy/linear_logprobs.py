"""log softmax(h W')[target] and its entropy, in tiles of logits that stay in a core's cache.

A tile is made, used and overwritten; the backward pass makes it again. What is kept of n rows is n sums. The running maximum
and sums are those of the online softmax (Milakov and Gimelshein, 1805.02867).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.products import add_outer, multiply

ROWS = 512
TILE_BYTES = 2 * 2**20
"""A tile of float32 logits on a CPU: one core's second-level cache."""


class Tiles(NamedTuple):
    """How logits are divided: so many rows, so many entries of the vocabulary."""

    rows: int
    entries: int

    @classmethod
    def of(cls, weight: Float[Tensor, "V H"], chunk_bytes: int) -> Tiles:
        """`chunk_bytes`: float32 logits alive at any time, at most.

        Half precision keeps rows whole, since each tile's product with the weights would be rounded before it is added up.
        """
        size = len(weight)
        if weight.dtype not in (torch.float32, torch.float64):
            return cls(max(1, chunk_bytes // (4 * size)), size)
        # a GPU's kernels want more at once; task=plan, whose weights are on no device, counts a CPU's
        tile_bytes = chunk_bytes if weight.device.type == "cuda" else min(chunk_bytes, TILE_BYTES)
        rows = max(1, min(ROWS, tile_bytes // 4))
        return cls(rows, max(1, min(size, tile_bytes // (4 * rows))))

    def row_slices(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self.rows) for start in range(0, count, self.rows))

    def entry_slices(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self.entries) for start in range(0, count, self.entries))


def linear_logprobs(
    hidden: Float[Tensor, "n H"],
    weight: Float[Tensor, "V H"],
    targets: Int[Tensor, " n"],
    chunk_bytes: int,
    entropy: bool = True,
    temperature: float = 1.0,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probability of each row's target and entropy of each row at the temperature, in nats, in float32 (float64 of
    float64).

    Gradients flow through the log-probabilities alone. Without `entropy` entropies are 0. Under autocast the logits are
    those of the autocast's dtype.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if temperature != 1 and hidden.dtype == _float_of(hidden):
        # cheaper than to divide the logits; states of 16 bits would be rounded once more, by as much as tokens differ
        hidden, temperature = hidden / temperature, 1.0
    return _LinearLogprobs.apply(hidden, weight, targets, Tiles.of(weight, chunk_bytes), entropy, temperature)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, tiles: Tiles, entropy: bool, temperature: float
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            parts = [
                _forward(hidden[rows], weight, targets[rows], tiles, entropy, temperature)
                for rows in tiles.row_slices(len(hidden))
            ]
        empty = hidden.new_zeros(0, dtype=_float_of(hidden))
        chosen, normaliser, entropies = (
            (torch.cat([empty, *column]) for column in zip(*parts, strict=True)) if parts else [empty] * 3
        )
        ctx.save_for_backward(hidden, weight, targets, normaliser)
        ctx.tiles, ctx.temperature = tiles, temperature
        ctx.mark_non_differentiable(entropies)
        return chosen - normaliser, entropies

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser = ctx.saved_tensors
        of_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        # half precision would be rounded as often as there are tiles of rows
        of_weight = torch.zeros_like(weight, dtype=_float_of(weight)) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in ctx.tiles.row_slices(len(hidden)):
                h, g = hidden[rows], gradient[rows, None]
                of_logits = g / ctx.temperature
                for entries in ctx.tiles.entry_slices(len(weight)):
                    w = weight[entries]
                    # g (onehot - softmax) / temperature, in the place of the logits
                    tile = _logits(h, w, ctx.temperature).sub_(normaliser[rows, None]).exp_().mul_(-of_logits)
                    place, inside = _place(targets[rows], entries, len(w))
                    tile.scatter_(1, place, tile.gather(1, place) + torch.where(inside, of_logits, 0.0))
                    tile = tile.to(h.dtype)
                    if of_hidden is not None:
                        of_hidden[rows] += multiply(tile, w.T)
                    if of_weight is not None:
                        add_outer(of_weight[entries], tile, h)
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), None, None, None, None


def _forward(
    hidden: Tensor, weight: Tensor, targets: Tensor, tiles: Tiles, entropy: bool, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of some rows: the target's logit, the log of the sum of exponentials, the entropy."""
    zeros = hidden.new_zeros(len(hidden), 1, dtype=_float_of(hidden))
    # sum of exp(z - highest), and of (z - highest) exp(z - highest), over the entries so far
    highest, total, weighted, chosen = torch.full_like(zeros, -torch.inf), zeros, zeros, zeros
    for entries in tiles.entry_slices(len(weight)):
        logits = _logits(hidden, weight[entries], temperature)
        place, inside = _place(targets, entries, logits.shape[1])
        chosen = torch.where(inside, logits.gather(1, place), chosen)
        above = torch.maximum(highest, logits.amax(1, keepdim=True))
        shift = torch.where(total > 0, highest - above, 0.0)
        factor = shift.exp()
        logits.sub_(above)
        if entropy:
            exponentials = logits.exp()
            weighted = factor * (weighted + shift * total) + torch.linalg.vecdot(exponentials, logits)[:, None]
        else:
            exponentials = logits.exp_()
        total = factor * total + exponentials.sum(1, keepdim=True)
        highest = above
    log_total = total.log()
    of_rows = log_total - weighted / total if entropy else zeros
    return chosen[:, 0], (highest + log_total)[:, 0], of_rows[:, 0]


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = multiply(hidden, weight).to(_float_of(hidden))
    return logits if temperature == 1 else logits.div_(temperature)


def _float_of(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _place(targets: Tensor, entries: slice, count: int) -> tuple[Int[Tensor, "n 1"], Tensor]:
    """Where the targets are among these entries, and whether they are."""
    place = targets[:, None] - entries.start
    return place.clamp(0, count - 1), (place >= 0) & (place < count)
