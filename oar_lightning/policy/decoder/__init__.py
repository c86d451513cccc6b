"""Decoders for scoring, which compute states only where these are read, and for sampling, which append to texts in place."""

from __future__ import annotations

import logging
import math
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.policy.attention import LayerRecord, ReadAt, masked_positions
from oar_lightning.policy.decoder.build_plain import has_learning_decoder, learning_decoder, plain_decoder
from oar_lightning.policy.decoder.graphs import GraphTexts, can_record
from oar_lightning.policy.decoder.growing import GrowingTexts, ModuleTexts, PlainTexts
from oar_lightning.policy.decoder.modules import ModuleDecoder
from oar_lightning.policy.decoder.past import Past, empty_past, join
from oar_lightning.policy.decoder.plain import PlainDecoder
from oar_lightning.policy.language_model import align, embed

__all__ = [
    "Decoder",
    "GrowingTexts",
    "ModuleDecoder",
    "Past",
    "PlainDecoder",
    "PlainTexts",
    "choose_decoder",
    "distinct_texts",
    "empty_past",
    "growing_texts",
    "has_learning_decoder",
    "join",
    "learning_decoder",
    "plain_decoder",
    "read_texts",
    "states_after",
    "states_before",
]

log = logging.getLogger(__name__)


@runtime_checkable
class Decoder(Protocol):
    """A causal decoder without its head.

    A call runs the embeddings of new columns after `past`, which is not changed. It returns the final (normalised) hidden
    states of the new columns in `read_at`, and with `keep` the past extended by the new columns. Each layer's attention is
    appended to `records`; the last layer's perhaps only at `read_at`. With `alone_at` each new token replaces one column of
    the past by itself: it sees the columns before that one, and itself.
    """

    def __call__(
        self,
        past: Past,
        inputs_embeds: Float[Tensor, "n W H"],
        read_at: ReadAt,
        keep: bool = False,
        records: list[LayerRecord] | None = None,
        alone_at: Int[Tensor, "n W"] | None = None,
    ) -> tuple[Float[Tensor, "n A H"], Past | None]: ...


@torch.no_grad()
def choose_decoder(model: Any, pack: bool = True) -> Decoder:
    """The fastest decoder for a model. Each call compares the plain form with the model's own modules on four tokens. `pack`:
    see `plain_decoder`; for scoring whose passes have gradients there is nothing to gain by it.

    The plain form is for float32 only. In other precisions the rounding between the operations is part of the model; in
    float64, too, because the families' norms compute in float32.
    """
    embeddings, modules = model.get_input_embeddings(), ModuleDecoder(model)
    plain = plain_decoder(model, pack) if embeddings.weight.dtype == torch.float32 else None
    if plain is None:
        return modules
    embeds = embeddings(torch.arange(4, device=embeddings.weight.device) % embeddings.weight.shape[0])[None]
    columns = torch.arange(4, device=embeds.device)[None]
    read_at = columns, torch.ones_like(columns, dtype=torch.bool)
    start = empty_past(columns[:, 0])
    expected = modules(start, embeds, read_at)[0]
    with torch.enable_grad():  # without it the plain form would pack its weights, which passes with gradients do not use
        actual = plain(start, embeds, read_at)[0]
    scale = float(expected.abs().max())
    if not math.isfinite(scale):  # a policy that has diverged agrees with nothing, not even with itself
        return modules
    if torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * scale):
        return plain
    log.warning(
        "%s computes something else than the plain form of its family; its own modules run, which are slower",
        type(model).__name__,
    )
    return modules


@torch.no_grad()
def growing_texts(model: Any, first: Int[Tensor, " n"], limit: int) -> GrowingTexts:
    """Empty texts that the model's fastest decoder reads; see `GrowingTexts`."""
    if can_record(model):
        return GraphTexts(model, first, limit)
    decoder = choose_decoder(model)
    if isinstance(decoder, PlainDecoder):
        return PlainTexts(model, decoder, first, limit)
    return ModuleTexts(model, first, limit)


def distinct_texts(
    token_ids: Int[Tensor, "N T"], first: Int[Tensor, " N"]
) -> tuple[Int[Tensor, "m T"], Int[Tensor, " m"], Int[Tensor, " N"]]:
    """The distinct ones of texts that begin in column `first`, where these begin, and which of them each text is."""
    distinct, owner = torch.cat([first[:, None], token_ids], 1).unique(dim=0, return_inverse=True)
    return distinct[:, 1:], distinct[:, 0], owner


def read_texts(model: Any, decoder: Decoder, token_ids: Int[Tensor, "N T"], first: Int[Tensor, " N"]) -> Past:
    """The past of texts that begin in column `first`."""
    read_at = torch.zeros_like(token_ids[:, :1]), torch.ones_like(token_ids[:, :1], dtype=torch.bool)  # its state is not used
    past = decoder(empty_past(first), embed(model, token_ids), read_at, keep=True)[1]
    assert past is not None
    return past


def states_before(
    model: Any,
    decoder: PlainDecoder,
    token_ids: Int[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
) -> Float[Tensor, "k H"] | None:
    """The `prediction_states` of the masked tokens, row by row; None for rows with a gap between their tokens.

    The last layer runs only where it is read. Rows are aligned at their first token, so that attention needs no mask. A
    row's first token, which nothing predicts, cannot be masked.
    """
    alignment = align(attention_mask)
    if alignment is None:
        return None
    to_front = torch.arange(token_ids.shape[1], device=mask.device).expand_as(mask) if alignment[0] is None else alignment[0]
    columns, valid = masked_positions(mask)
    read = (columns - 1 - to_front[:, :1]).clamp(min=0)
    start = empty_past(torch.zeros_like(to_front[:, 0]))
    return decoder.read(start, embed(model, token_ids.gather(1, to_front)), (read, valid))


def states_after(
    model: Any, decoder: PlainDecoder, past: Past, token_ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]
) -> Float[Tensor, "k H"]:
    """As `states_before`, of rows whose first columns are those of `past`, and are not run again. Tokens that are masked are
    behind the column after these."""
    columns, valid = masked_positions(mask)
    inputs = token_ids[:, past.width : max(past.width + 1, int(columns.max()))]  # the last token is predicted, not read
    read = (columns - 1 - past.width).clamp(min=0)
    return decoder.read(past, embed(model, inputs), (read, valid))
