"""The interface to a Hugging Face causal LM's decoder: embeddings and hidden states. Its head is in `lm_head`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.policy.attention import ReadAt, last_layer_at, scoring_attention

STATES_BYTES = 2**30
"""The most hidden states that are kept for later stages; beyond it each stage runs the policy itself."""


def base_model(model: Any) -> Any:
    """The `transformers` model inside a `peft` wrapper (adapters stay active), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def positions_of(model: Any) -> int | None:
    """The most tokens of a text that the model can read, and reads as it reads shorter ones; None where nothing bounds them."""
    return min(text_bounds(model).values(), default=None)


def text_bounds(model: Any) -> dict[str, int]:
    """What bounds the tokens of a text -> how many there may be."""
    bounds = {
        "positions of the policy": getattr(base_model(model).config.get_text_config(), "max_position_embeddings", None),
        "tokens up to which its rotary embedding (longrope) is one": one_rotation(model),
    }
    return {what: most for what, most in bounds.items() if most is not None}


def one_rotation(model: Any) -> int | None:
    """The most tokens of a text for which a rotary embedding of the kind "longrope" (Phi-3) turns each position by one angle.
    In longer ones all angles differ from those that their first tokens were drawn with, and from those of shorter texts of a
    batch. None for other kinds."""
    config = base_model(model).config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Eval mode (no dropout) inside the block; afterwards every submodule has its former mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def turn_dropout_off(model: torch.nn.Module) -> None:
    """Rates are those of dropout modules, and numbers that a model's own modules and its config keep."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for keeper in (module, getattr(module, "config", module)):
            for name in [name for name, value in vars(keeper).items() if "drop" in name and isinstance(value, float)]:
                setattr(keeper, name, 0.0)


@contextlib.contextmanager
def scoring_mode(model: Any) -> Iterator[None]:
    """`evaluating` with `scoring_attention`."""
    with evaluating(model), scoring_attention(base_model(model)):
        yield


def embed(model: Any, token_ids: Int[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
    """The embeddings of token ids."""
    embeddings = model.get_input_embeddings()(token_ids)
    # with gradient checkpointing a hook makes them require a gradient even where gradients are disabled
    return embeddings if torch.is_grad_enabled() else embeddings.detach()


def position_ids(attention_mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Positions counted from each row's first real token, as `generate` counts them."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def hidden_states(
    model: Any,
    attention_mask: Bool[Tensor, "B S"],
    token_ids: Int[Tensor, "B S"] | None = None,
    inputs_embeds: Float[Tensor, "B S H"] | None = None,
    read_at: ReadAt | None = None,
    decoder: Callable[..., Any] | None = None,
) -> Float[Tensor, "B S H"]:
    """Final (normalised) hidden states of the decoder, from ids or from embeddings; unusable where the mask is False.

    With `read_at` only the states at those columns are usable, which saves work. Rows without gaps between their tokens are
    aligned at their first token: padding is then at the end, where a causal model's tokens do not see it. No attention mask is
    needed, and the batch is no wider than its longest row. `decoder` replaces the model's own, e.g. by a compiled one.
    """
    module = base_model(model).get_decoder()
    run = module if decoder is None else decoder
    key, inputs = ("input_ids", token_ids) if inputs_embeds is None else ("inputs_embeds", inputs_embeds)
    assert inputs is not None, "hidden_states takes token_ids or inputs_embeds"
    alignment = align(attention_mask)
    if alignment is None:
        positions: dict[str, Any] = {}
        if "position_ids" in inspect.signature(module.forward).parameters:
            positions["position_ids"] = position_ids(attention_mask)
        with last_layer_at(module, read_at):
            return run(attention_mask=attention_mask.long(), use_cache=False, **{key: inputs}, **positions).last_hidden_state
    to_front, to_original = alignment
    if to_front is not None:
        inputs = at_columns(inputs, to_front)
        if read_at is not None:
            read_at = (read_at[0] - to_front[:, :1]).clamp(min=0), read_at[1]
    with last_layer_at(module, read_at):
        hidden = run(use_cache=False, **{key: inputs}).last_hidden_state
    return hidden if to_original is None else at_columns(hidden, to_original)


def align(
    attention_mask: Bool[Tensor, "B S"],
) -> tuple[Int[Tensor, "B W"] | None, Int[Tensor, "B S"] | None] | None:
    """Column indices that move each row's tokens to the front, and those that move them back.

    (None, None) where the tokens are at the front already; None where a row has a gap between its tokens.
    """
    columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    first = attention_mask.long().argmax(1)
    counts = attention_mask.sum(1)
    if not torch.equal(attention_mask, (columns >= first[:, None]) & (columns < (first + counts)[:, None])):
        return None
    width = int(counts.max()) if len(counts) else len(columns)
    if not first.any() and width == len(columns):
        return None, None
    to_front = (columns[: max(1, width)] + first[:, None]).clamp(max=len(columns) - 1)
    return to_front, (columns - first[:, None]).clamp(min=0, max=max(1, width) - 1)


def at_columns(values: Tensor, columns: Int[Tensor, "B W"]) -> Tensor:
    """The given columns of each row of values [B S] or [B S H], as [B W] or [B W H]."""
    index = columns if values.ndim == 2 else columns[..., None].expand(-1, -1, values.shape[-1])
    return values.gather(1, index)


def prediction_states(model: Any, attention_mask: Bool[Tensor, "B S"], token_ids: Int[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
    """The final hidden state from which each token was predicted; zero for the first column, which is not predicted."""
    return torch.nn.functional.pad(hidden_states(model, attention_mask, token_ids)[:, :-1], (0, 0, 1, 0))


def states_fit(model: Any, tokens: int) -> bool:
    """Whether the hidden states of so many tokens fit into `STATES_BYTES`."""
    weight = model.get_input_embeddings().weight
    return tokens * weight.shape[1] * weight.element_size() <= STATES_BYTES


def can_share_prefixes(model: Any) -> bool:
    """Whether every layer keeps plain, growing keys and values (no sliding window, no recurrent state)."""
    from oar_lightning.policy.key_value_cache import only_grows

    takes_cache = "past_key_values" in inspect.signature(base_model(model).get_decoder().forward).parameters
    return takes_cache and only_grows(new_cache(model))


def new_cache(model: Any, limit: int | None = None) -> Any:
    """An empty cache of keys and values; see `key_value_cache.new_cache`."""
    from oar_lightning.policy import key_value_cache

    return key_value_cache.new_cache(base_model(model).config, limit)
