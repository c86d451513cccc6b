"""The attention of scoring passes. In the last layer it runs only at columns that will be read; on request it is recorded.

`transformers` calls this attention by name, for every family that uses its attention interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NAME = "oar_lightning"
ReadAt = tuple[Int[Tensor, "N A"], Bool[Tensor, "N A"]]
"""Columns of each row whose final hidden states will be read, padded; and which of these are real."""

_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sliding_window")
"""Arguments of attention that recording does not support."""

BLOCK = 256
"""Queries of one block of a long text's attention."""

FEW_QUERIES, MANY_HEADS = 4, 256
"""On a CPU attention of so few queries a head and so many heads of all rows is faster as two products."""

# the active blocks of `last_layer_at`, `attention_in_blocks` and `recorded_attention`, innermost last
_read_at: list[ReadAt] = []
_blocks: list[list[QueryBlock]] = []
_records: list[list[LayerRecord]] = []


class QueryBlock(NamedTuple):
    """Neighbouring queries, and ranges of keys outside of which none of them sees any."""

    queries: slice
    keys: tuple[slice, ...]

    def seen(self, keys: Tensor, dim: int) -> Tensor:
        """The entries of these keys along a dimension."""
        parts = [keys.narrow(dim, part.start, part.stop - part.start) for part in self.keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def in_blocks(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    query: Float[Tensor, "n h W d"],
    key: Float[Tensor, "n g T d"],
    value: Float[Tensor, "n g T d"],
    mask: Tensor,
    blocks: Sequence[QueryBlock],
    dim: int,
) -> Tensor:
    """``attend(query, key, value, mask)`` block by block, each with no other keys than it sees; `dim`: that of the queries in
    the output. A mask alone does not spare the keys that it hides: half of all in a causal text."""
    outs = [
        attend(query[:, :, block.queries], block.seen(key, 2), block.seen(value, 2), block.seen(mask[:, :, block.queries], 3))
        for block in blocks
    ]
    return torch.cat(outs, dim)


def products_are_faster(query: Float[Tensor, "n Q h d"]) -> bool:
    """Whether `attend_by_products` takes less time than torch's kernel, which on a CPU is made for many queries: of few queries
    a head, but many heads, it takes longer than two products (`python reports/few_queries/measure.py`)."""
    rows, queries, heads, _ = query.shape
    return query.device.type == "cpu" and queries <= FEW_QUERIES and rows * heads >= MANY_HEADS


def attend_by_products(
    query: Float[Tensor, "n Q h d"],
    keys: Float[Tensor, "n g T d"],
    values: Float[Tensor, "n g T d"],
    mask: Bool[Tensor, "m 1 Q T"] | Float[Tensor, "m 1 Q T"] | None,
) -> Float[Tensor, "n Q h d"]:
    """softmax(q k' / sqrt(d) + mask) v with two batched products. The heads that share keys are queries of one head, so that no
    key is copied. Holds n h Q T scores. `mask`: True or 0 where a query sees a key; None: it sees all."""
    n, queries, heads, size = query.shape
    groups, width = keys.shape[1], keys.shape[2]
    packed = (query * size**-0.5).unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = torch.matmul(packed, keys.transpose(2, 3)).view(n, heads, queries, width)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).view(n, groups, -1, width)
    out = torch.matmul(weights, values).view(n, groups, -1, queries, size)
    return out.permute(0, 3, 1, 2, 4).reshape(query.shape)


def attend_single(
    query: Float[Tensor, "n 1 h d"],
    keys: Float[Tensor, "n g T d"],
    values: Float[Tensor, "n g T d"],
    mask: Bool[Tensor, "m 1 1 T"] | Float[Tensor, "m 1 1 T"] | None,
    scaling: float | None = None,
) -> Float[Tensor, "n 1 h d"]:
    """Attention of one query a row. The heads that share keys are queries of one head, so that no key is copied;
    older versions of transformers copy them where there is a mask."""
    packed = query.unflatten(2, (keys.shape[1], -1)).squeeze(1)
    out = torch.nn.functional.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scaling)
    return out.flatten(1, 2)[:, None]


class LayerRecord(NamedTuple):
    """One layer's attention of W queries, at `columns`, over T keys. Gradients with respect to `out` can be taken."""

    query: Float[Tensor, "n h W d"]
    key: Float[Tensor, "n g T d"]
    value: Float[Tensor, "n g T d"]
    out: Float[Tensor, "n W h d"]
    scaling: float
    columns: Int[Tensor, "n W"]

    def detached(self) -> LayerRecord:
        query, key, value, out = (tensor.detach() for tensor in self[:4])
        return self._replace(query=query, key=key, value=value, out=out)


@contextlib.contextmanager
def scoring_attention(model: Any) -> Iterator[None]:
    """Inside the block an unwrapped `transformers` model with sdpa attention uses this module's; other models keep theirs."""
    former = model.config._attn_implementation
    if former != "sdpa" or not model._can_set_attn_implementation():
        yield
        return
    with _implementation(model, former):
        yield


@contextlib.contextmanager
def recorded_attention(model: Any, records: list[LayerRecord]) -> Iterator[None]:
    """Inside the block each layer appends its attention to `records` at every pass.

    Raises:
        ValueError: for a model that does not use the attention interface; and at a pass, for attention other than
            softmax(q k' scaling) v.
    """
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"scorer.coarse: attribution cannot see the attention of {type(model).__name__}, which does not go through "
            "transformers' attention interface; use scorer/coarse=spans"
        )
    with _implementation(model, model.config._attn_implementation):
        _records.append(records)
        try:
            yield
        finally:
            _records.pop()


@contextlib.contextmanager
def attention_in_blocks(blocks: list[QueryBlock] | None) -> Iterator[None]:
    """Inside the block, and under `scoring_attention` or `recorded_attention`, masked attention of all queries runs in these
    blocks; None: at once."""
    if blocks is None:
        yield
        return
    _blocks.append(blocks)
    try:
        yield
    finally:
        _blocks.pop()


@contextlib.contextmanager
def _implementation(model: Any, former: str) -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(former)


def masked_positions(mask: Bool[Tensor, "N S"]) -> ReadAt:
    """Column indices of each row's masked entries, in order, padded with 0; and which of them are real."""
    width = max(1, int(mask.sum(1).max())) if len(mask) else 1
    # a stable sort puts the masked columns first, in order
    index = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :width]
    valid = mask.gather(1, index)
    return index.masked_fill(~valid, 0), valid


@contextlib.contextmanager
def last_layer_at(decoder: torch.nn.Module, read_at: ReadAt | None) -> Iterator[None]:
    """Inside the block the last layer's MLP, and under `scoring_attention` its attention, run only at the given columns.

    Final hidden states at these columns are unchanged, for MLP and attention compute each position's output separately; at
    other columns they are unusable. The last layer still has the keys and values of all positions. A family whose last layer
    has no module `mlp` runs the layer in full.
    """
    if read_at is None:
        yield
        return
    mlp = last_mlp(decoder)
    handles = [] if mlp is None else _only_at(mlp, *read_at)
    _read_at.append(read_at)
    try:
        yield
    finally:
        _read_at.pop()
        for handle in handles:
            handle.remove()


def last_mlp(decoder: torch.nn.Module) -> torch.nn.Module | None:
    """The MLP of the last layer; None where it cannot be found."""
    stacks = [module for module in decoder.children() if isinstance(module, torch.nn.ModuleList) and len(module)]
    last = stacks[-1][-1] if len(stacks) == 1 else None
    mlp = getattr(last, "mlp", None)
    return mlp if isinstance(mlp, torch.nn.Module) else None


def _only_at(module: torch.nn.Module, columns: Int[Tensor, "N A"], valid: Bool[Tensor, "N A"]) -> list[Any]:
    """Hooks that run a module only at the given columns; the module must compute each position separately."""
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    width = 0

    def pick(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal width
        width = args[0].shape[1]
        return tuple(x[rows, columns] if isinstance(x, Tensor) and x.shape[:2] == args[0].shape[:2] else x for x in args)

    def place(module: torch.nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        spread = _spread(first, columns, valid, width)
        return (spread, *out[1:]) if isinstance(out, tuple) else spread

    return [module.register_forward_pre_hook(pick), module.register_forward_hook(place)]


def _spread(values: Float[Tensor, "N A ..."], columns: Tensor, valid: Tensor, width: int) -> Float[Tensor, "N W ..."]:
    """The values at their columns, zero elsewhere."""
    rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
    at = (rows[valid], columns[valid])  # a column listed twice would get its gradient twice
    return values.new_zeros(len(values), width, *values.shape[2:]).index_put(at, values[valid])


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        known = not dropout and all(kwargs.get(name) is None for name in ("softcap", "s_aux", "position_bias"))
        if mask is not None and query.shape[2] == mask.shape[1] == 1 and known:
            return attend_single(query.transpose(1, 2), key, value, mask, scaling)
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)[0]

    config: Any = getattr(module, "config", None)
    is_last = config is not None and getattr(module, "layer_idx", None) == config.num_hidden_layers - 1
    if _read_at and is_last and not _records:
        columns, valid = _read_at[-1]
        width, keys = query.shape[2], key.shape[2]
        heads = columns[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
        if attention_mask is None:
            mask = torch.arange(keys, device=query.device) <= (columns + keys - width)[:, None, :, None]
        else:
            rows = columns[:, None, :, None].expand(-1, attention_mask.shape[1], -1, keys)
            mask = attention_mask.expand(len(columns), -1, -1, -1).gather(2, rows)
        return _spread(attend(query.gather(2, heads), key, value, mask), columns, valid, width), None
    if unsupported := [name for name in _UNSUPPORTED if _records and kwargs.get(name) is not None]:
        raise ValueError(
            f"scorer.coarse: attribution does not know attention with {', '.join(unsupported)} ({type(module).__name__}); "
            "use scorer/coarse=spans"
        )
    if _blocks and attention_mask is not None:
        out = in_blocks(attend, query, key, value, attention_mask, _blocks[-1], 1)
    else:
        out = attend(query, key, value, attention_mask)
    if _records:
        if torch.is_grad_enabled() and not out.requires_grad:
            out.requires_grad_()
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        columns = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=query.device).expand(len(query), -1)
        _records[-1].append(LayerRecord(query, key, value, out, scaling, columns))
    return out, None
