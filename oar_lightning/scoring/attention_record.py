"""What every attention layer of a pass saw and gave, for models that call `transformers`' attention interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.language_model import base_model

NAME = "oar_lightning_recording"
_records: list[LayerRecord] = []
_UNKNOWN = ("softcap", "s_aux", "position_bias", "sliding_window")


class LayerRecord(NamedTuple):
    """One layer's attention over W queries at the end of T keys; `out` can be differentiated by."""

    query: Float[Tensor, "n h W d"]
    key: Float[Tensor, "n g T d"]
    value: Float[Tensor, "n g T d"]
    out: Float[Tensor, "n W h d"]
    scaling: float

    def detached(self) -> LayerRecord:
        return LayerRecord(self.query.detach(), self.key.detach(), self.value.detach(), self.out.detach(), self.scaling)


@contextlib.contextmanager
def recorded_attention(model: Any) -> Iterator[list[LayerRecord]]:
    """Inside the block the returned list holds the layers of the last passes; empty it between passes.

    Raises:
        ValueError: at a pass of a model whose attention does something beside softmax(q k' scaling) v.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    inner = base_model(model)
    former = inner.config._attn_implementation
    _records.clear()
    inner.set_attn_implementation(NAME)
    try:
        yield _records
    finally:
        inner.set_attn_implementation(former)
        _records.clear()


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

    if extra := [name for name in _UNKNOWN if kwargs.get(name) is not None]:
        raise ValueError(
            f"scorer.coarse: attribution does not know attention with {', '.join(extra)} ({type(module).__name__}); "
            "use scorer/coarse=spans"
        )
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    if torch.is_grad_enabled() and not out.requires_grad:
        out.requires_grad_()
    _records.append(LayerRecord(query, key, value, out, query.shape[-1] ** -0.5 if scaling is None else scaling))
    return out, None
