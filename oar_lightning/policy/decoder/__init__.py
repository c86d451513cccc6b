"""Decoders as scoring runs them: a few new columns onto what was read before, states only where they are read."""

from __future__ import annotations

import logging
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.attention import LayerRecord, ReadAt
from oar_lightning.policy.decoder.modules import ModuleDecoder
from oar_lightning.policy.decoder.past import Past, join, nothing_read
from oar_lightning.policy.decoder.plain import PlainDecoder, plain_decoder

__all__ = ["Decoder", "ModuleDecoder", "Past", "PlainDecoder", "choose_decoder", "join", "nothing_read", "plain_decoder"]

log = logging.getLogger(__name__)


@runtime_checkable
class Decoder(Protocol):
    """A causal decoder without its head.

    Called with what was read before (`past`, which stays as it is), the embeddings of the next columns, and those of the new
    columns whose final (normalised) hidden states are wanted; gives these states, and with `keep` the past grown by the new
    columns. `records` gets each layer's attention; in the last layer perhaps only where it is read. With `alone_at` each
    new token stands alone in the place of a column that was read: it sees the columns before that one, and itself.
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
def choose_decoder(model: Any) -> Decoder:
    """The fastest decoder for a model. The plain form is held against the model's own modules on four tokens each time.

    It is for float32 only: in other precisions the rounding between the operations is part of the model (in float64, too:
    the families' norms work in float32).
    """
    embeddings, modules = model.get_input_embeddings(), ModuleDecoder(model)
    plain = plain_decoder(model) if embeddings.weight.dtype == torch.float32 else None
    if plain is None:
        return modules
    embeds = embeddings(torch.arange(4, device=embeddings.weight.device) % embeddings.weight.shape[0])[None]
    everywhere = torch.arange(4, device=embeds.device)[None]
    read_at = everywhere, torch.ones_like(everywhere, dtype=torch.bool)
    start = nothing_read(everywhere[:, 0])
    expected, actual = (decoder(start, embeds, read_at)[0] for decoder in (modules, plain))
    if torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())):
        return plain
    log.warning(
        "%s computes something else than the family it is named after; scoring runs its own modules, more slowly",
        type(model).__name__,
    )
    return modules
