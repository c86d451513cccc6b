"""Runs any decoder of `transformers` through its own modules."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.attention import LayerRecord, ReadAt, attention_in_blocks, last_layer_at, recorded_attention
from oar_lightning.policy.decoder.past import Past, query_blocks, visible_columns
from oar_lightning.policy.language_model import at_columns, base_model, hidden_states, new_cache


class ModuleDecoder:
    """See `Decoder`. Within `language_model.scoring_mode` the last layer runs only where it is read."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = base_model(model).get_decoder()
        self._takes_positions = "position_ids" in inspect.signature(self._decoder.forward).parameters

    def __call__(
        self,
        past: Past,
        inputs_embeds: Float[Tensor, "n W H"],
        read_at: ReadAt,
        keep: bool = False,
        records: list[LayerRecord] | None = None,
        alone_at: Int[Tensor, "n W"] | None = None,
    ) -> tuple[Float[Tensor, "n A H"], Past | None]:
        new = inputs_embeds.shape[1]
        real = past.real(past.width + new)
        if not past.width and not keep and records is None:
            hidden = hidden_states(self._model, real, inputs_embeds=inputs_embeds, read_at=read_at)
            return at_columns(hidden, read_at[0]), None
        seen, positions = visible_columns(past, new, alone_at)
        mask = seen[:, None] if alone_at is not None else None if bool(real.all()) else real.long()
        cache = new_cache(self._model)
        for layer, (keys, values) in enumerate(zip(past.keys, past.values, strict=True)):
            cache.update(keys, values, layer)
        with contextlib.ExitStack() as stack:
            if records is not None:
                stack.enter_context(recorded_attention(base_model(self._model), records))
            stack.enter_context(last_layer_at(self._decoder, read_at))
            stack.enter_context(attention_in_blocks(query_blocks(past, new, alone_at)))
            hidden = self._decoder(
                inputs_embeds=inputs_embeds,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **({"position_ids": positions.expand(len(real), -1)} if self._takes_positions else {}),
            ).last_hidden_state
        grown = Past(tuple(x.keys for x in cache.layers), tuple(x.values for x in cache.layers), past.first) if keep else None
        return at_columns(hidden, read_at[0]), grown
