"""The plain decoder (RMS norms, rotary positions, gated SiLU: Llama, Mistral, Qwen2, Qwen3) in few large operations.

It computes the same as `transformers` with fewer operations: one product for queries, keys and values, one for both halves of
the MLP, norms folded into the weights, rotation as a complex product, and a last layer that runs only where it is read. On
small models the modules' many small operations take longer than their arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from oar_lightning.policy.attention import (
    LayerRecord,
    QueryBlock,
    ReadAt,
    attend_by_products,
    attend_single,
    in_blocks,
    products_are_faster,
)
from oar_lightning.policy.decoder.gated_silu import gated_silu
from oar_lightning.policy.decoder.past import Past, added_mask, query_blocks, visible_columns
from oar_lightning.policy.decoder.rms_norm import rms_norm
from oar_lightning.policy.decoder.rows import pick_rows
from oar_lightning.policy.products import Weights, with_rows


@dataclass(frozen=True)
class PlainLayer:
    """The weights of one layer. Two elements of a head that are rotated together are neighbours.

    `keys_values` are those of `qkv` without the queries, for a layer that computes these apart: the last.
    """

    qkv: Weights
    keys_values: Weights | None
    qkv_bias: Float[Tensor, " P"] | None
    head_norm: Float[Tensor, "r d"] | None
    output: Weights
    output_bias: Float[Tensor, " H"] | None
    gate_up: Weights
    down: Weights

    def changed(self, change: Callable[[Tensor], Tensor]) -> PlainLayer:
        """The same with other weights."""

        def of(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            return value if value is None else Weights(change(value.matrix))

        return PlainLayer(**{name: of(value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class PlainDecoder:
    """See `Decoder`. The weights are a copy from the time of construction; they carry gradients to the model's if asked for."""

    heads: int
    groups: int
    head_size: int
    eps: Float[Tensor, ""]
    layers: tuple[PlainLayer, ...]
    norm: Float[Tensor, " H"]
    rotary: Any

    def __call__(
        self,
        past: Past,
        inputs_embeds: Float[Tensor, "n W H"],
        read_at: ReadAt,
        keep: bool = False,
        records: list[LayerRecord] | None = None,
        alone_at: Int[Tensor, "n W"] | None = None,
    ) -> tuple[Float[Tensor, "n A H"], Past | None]:
        x, kept = self._run(past, inputs_embeds, read_at, keep, records, alone_at, False)
        return x.unflatten(0, read_at[0].shape), kept

    @property
    def weights(self) -> list[Tensor]:
        """All of them."""
        found: list[Tensor] = []

        def keep(weight: Tensor) -> Tensor:
            found.append(weight)
            return weight

        self._changed(keep)
        return found

    def with_weights(self, weights: Sequence[Tensor]) -> PlainDecoder:
        """The same with other weights, in the order of `weights`."""
        left = iter(weights)
        return self._changed(lambda _: next(left))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> PlainDecoder:
        return dataclasses.replace(self, layers=tuple(layer.changed(change) for layer in self.layers), norm=change(self.norm))

    def read(self, past: Past, inputs_embeds: Float[Tensor, "n W H"], read_at: ReadAt) -> Float[Tensor, "k H"]:
        """As a call, but no more than the states of columns that are real, text by text. Each may be there once."""
        return self._run(past, inputs_embeds, read_at, False, None, None, True)[0]

    def _run(
        self,
        past: Past,
        inputs_embeds: Float[Tensor, "n W H"],
        read_at: ReadAt,
        keep: bool,
        records: list[LayerRecord] | None,
        alone_at: Int[Tensor, "n W"] | None,
        real: bool,
    ) -> tuple[Float[Tensor, "k H"], Past | None]:
        """The states in `read_at`, with `real` of no others than are real there; see `Decoder`."""
        n, width = inputs_embeds.shape[:2]
        seen, positions = visible_columns(past, width, alone_at)
        angles = self._angles(inputs_embeds, positions).expand(n, -1, -1, -1)
        columns = torch.arange(past.width, seen.shape[2], device=seen.device).expand(n, -1)
        causal = not past.width and not past.first.any()  # the causal kernel is faster than a mask
        x = self._as_rows(inputs_embeds)
        if not torch.is_grad_enabled() and len(x) == n * width:  # else it is a copy already
            x = x.clone()  # layers add to it in place
        kept: list[tuple[Tensor, Tensor]] = []
        (reads, valid), rows = read_at, torch.arange(n, device=x.device)[:, None]
        blocks = None if causal else query_blocks(past, width, alone_at)
        # of long texts, causal attention of all queries takes half as long as that of most of them with a mask, and no mask
        # `real`: all queries, of which the real ones go on, spare a choice of them before attention
        most = (causal or blocks is not None or real) and records is None and 2 * reads.shape[1] > width
        # torch's kernel would make numbers of a mask in each layer; where long texts have blocks, of each block
        mask = None if causal else seen[:, None] if blocks is not None else added_mask(seen, x.dtype)
        for number, layer in enumerate(self.layers):
            last, normed = number + 1 == len(self.layers), rms_norm(x, self.eps)
            if not last or most:
                query, key, value = self._projections(layer, normed, angles)
            else:
                read = (rows * width + reads).flatten()
                query = self._projections(layer, self._as_rows(normed[read][None]), angles[rows, reads])[0]
                key, value = self._projections(layer, normed, angles, queries=False)[1:]
                x, columns, blocks = self._as_rows(x[read][None]), columns.gather(1, reads), None
                mask = added_mask(seen.expand(n, -1, -1)[rows, reads], x.dtype)
            keys, values = key.transpose(1, 2), value.transpose(1, 2)
            if past.width:
                keys, values = torch.cat([past.keys[number], keys], 2), torch.cat([past.values[number], values], 2)
            out = self._attend(query, keys, values, mask, blocks)
            if records is not None:
                if torch.is_grad_enabled() and not out.requires_grad:
                    out.requires_grad_()
                records.append(LayerRecord(query.transpose(1, 2), keys, values, out, self.head_size**-0.5, columns))
            heads = out.flatten(2)
            if last and real:
                read = (rows * width + reads)[valid] if most else valid.flatten().nonzero().squeeze(1)
                x, heads = (pick_rows(part, read, layer.gate_up.rows(len(read))) for part in (x, heads.flatten(0, 1)))
            elif last and most:
                read = (rows * width + reads).flatten()
                x, heads = (self._as_rows(part[read][None]) for part in (x, heads.flatten(0, 1)))
            else:
                heads = self._as_rows(heads)
            x = self._after_attention(layer, x, heads)
            if keep:
                kept.append((keys, values))
        keys_kept, values_kept = zip(*kept, strict=True) if keep else ((), ())
        states = rms_norm(x[: len(read) if real else valid.numel()], self.eps) * self.norm
        return states, Past(keys_kept, values_kept, past.first) if keep else None

    @torch.no_grad()
    def append(
        self,
        cache: Any,
        inputs_embeds: Float[Tensor, "n W H"],
        rotations: Complex[Tensor, "n W 1 p"],
        mask: Float[Tensor, "n 1 W S"] | None,
    ) -> Float[Tensor, "n W H"]:
        """Final (normalised) hidden states of new columns after those of a `transformers` cache, which is extended in place.

        `rotations`: those of the new columns' positions. `mask` is added to the attention's scores; None where every column
        sees all columns before it and itself. The embeddings may be overwritten.
        """
        x = self._as_rows(inputs_embeds)
        for number, layer in enumerate(self.layers):
            query, key, value = self._projections(layer, rms_norm(x, self.eps), rotations)
            keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), number)
            x = self._after_attention(layer, x, self._as_rows(self._attend(query, keys, values, mask).flatten(2)))
        shape = inputs_embeds.shape
        return (rms_norm(x[: shape[0] * shape[1]], self.eps) * self.norm).view(shape)

    def _as_rows(self, x: Float[Tensor, "n W I"]) -> Float[Tensor, "R I"]:
        """The columns of all texts as rows, and behind them the rows of no token that spare a layer's products copies."""
        flat = x.flatten(0, 1)
        return with_rows(flat, self.layers[0].gate_up.rows(len(flat)))

    def _after_attention(self, layer: PlainLayer, x: Float[Tensor, "R H"], heads: Float[Tensor, "R P"]) -> Float[Tensor, "R H"]:
        """The layer's output, from its input and the output of its heads."""
        x = layer.output.onto(x, heads, layer.output_bias)
        return layer.down.onto(x, gated_silu(layer.gate_up(rms_norm(x, self.eps))), None)

    def _projections(
        self, layer: PlainLayer, normed: Float[Tensor, "R H"], angles: Complex[Tensor, "n W 1 p"], queries: bool = True
    ) -> tuple[Float[Tensor, "n W h d"], Float[Tensor, "n W g d"], Float[Tensor, "n W g d"]]:
        """Rotated queries (none without `queries`), rotated keys, and values of the rows that are a token's."""
        heads = self.heads if queries else 0
        start = (self.heads - heads) * self.head_size
        bias = None if layer.qkv_bias is None else layer.qkv_bias[start:]
        weights = layer.qkv if queries else layer.keys_values
        assert weights is not None
        projected, (n, width) = weights(normed, bias), angles.shape[:2]
        if len(projected) > n * width:
            projected = projected[: n * width]
        projected = projected.view(n, width, heads + 2 * self.groups, self.head_size)
        unrotated, value = projected.split([heads + self.groups, self.groups], 2)
        if layer.head_norm is not None:
            unrotated = rms_norm(unrotated, self.eps) * layer.head_norm[self.heads - heads :]
        pairs = torch.view_as_complex(unrotated.unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * angles if torch.is_grad_enabled() else pairs.mul_(angles)).flatten(-2)
        query, key = rotated.split([heads, self.groups], 2)
        return query, key, value

    def _attend(
        self,
        query: Float[Tensor, "n Q h d"],
        keys: Float[Tensor, "n g T d"],
        values: Float[Tensor, "n g T d"],
        mask: Bool[Tensor, "m 1 Q T"] | Float[Tensor, "m 1 Q T"] | None,
        blocks: list[QueryBlock] | None = None,
    ) -> Float[Tensor, "n Q h d"]:
        """Attention of the queries. `mask` None: causal, the queries are those of the last columns or of all. `blocks`: of a
        mask's queries, which then see keys block by block."""
        if (mask is not None or query.shape[1] == 1) and products_are_faster(query):
            return attend_by_products(query, keys, values, mask)
        if query.shape[1] == 1:
            return attend_single(query, keys, values, mask)
        grouped = self.heads != self.groups
        if mask is not None and blocks is not None:
            attend = partial(scaled_dot_product_attention, enable_gqa=grouped)
            return in_blocks(attend, query.transpose(1, 2), keys, values, mask, blocks, 2).transpose(1, 2)
        out = scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, mask, is_causal=mask is None, enable_gqa=grouped
        )
        return out.transpose(1, 2)

    def _angles(self, like: Tensor, positions: Int[Tensor, "n W"]) -> Complex[Tensor, "n W 1 p"]:
        """The rotation of each pair at each position."""
        return self.rotations(like, int(positions.max()) + 1)[positions][:, :, None]

    def rotations(self, like: Tensor, count: int) -> Complex[Tensor, "S p"]:
        """The rotation of each pair at the first positions, as a complex number."""
        cos, sin = self.rotary(like, torch.arange(count, device=like.device)[None])
        half = self.head_size // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half])
