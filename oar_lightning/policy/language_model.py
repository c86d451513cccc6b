"""The interface to a Hugging Face causal LM: embeddings, hidden states, and logits at chosen positions.

Decoder and head run separately: logits exist only where they are read, and a float32 ``[B, S, V]`` is never materialised.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.attention import ReadAt, last_layer_at, scoring_attention
from oar_lightning.policy.linear_logprobs import linear_logprobs

LOGITS_CHUNK_BYTES = 64 * 2**20
"""Float32 logits alive at any time in `token_logprobs`: 16 Mi floats, 110 tokens of a 152k vocabulary."""

FEW_LOGITS_BYTES = 8 * 2**20
"""Up to so many float32 logits in all, keeping them for the backward pass is cheaper than making them again in tiles."""

TRANSFORMED_LOGITS = ("logits_scaling", "logit_scale", "final_logit_softcapping")
"""Settings of families whose logits are more than the head's output (`head_logits`)."""

STATES_BYTES = 2**30
"""The most hidden states that are kept for later stages; beyond it each stage runs the policy itself."""


def base_model(model: Any) -> Any:
    """The `transformers` model inside a `peft` wrapper (adapters stay active), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


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


def head_logits(model: Any, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Float32 (or float64) logits of given hidden states, with the family's own scaling or soft cap."""
    base = base_model(model)
    logits = base.get_output_embeddings()(hidden)
    config = base.config.get_text_config()
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "final_logit_softcapping", None):  # Gemma
        logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits if logits.dtype == torch.float64 else logits.float()


@torch.no_grad()
def check_head(model: Any) -> None:
    """Compare decoder + head with the model's own forward on four tokens.

    Raises:
        ValueError: where the architecture transforms its logits in a way that `head_logits` does not know.
    """
    device = model.get_input_embeddings().weight.device
    token_ids = torch.arange(1, 5, device=device)[None]
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    expected = model(input_ids=token_ids, attention_mask=mask.long()).logits.float()
    actual = head_logits(model, hidden_states(model, mask, token_ids)).float()
    tolerance = 1e-4 if next(model.parameters()).dtype in (torch.float32, torch.float64) else 5e-2
    scale = expected.abs().max().clamp(min=1.0)
    if not torch.allclose(actual / scale, expected / scale, atol=tolerance):
        raise ValueError(
            f"policy.name: {type(base_model(model)).__name__} transforms its logits in a way that is not known here "
            f"(largest difference {float((actual - expected).abs().max()):.3g}); add it to language_model.head_logits"
        )


def token_logprobs(
    model: Any,
    token_ids: Int[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
    temperature: float = 1.0,
    entropy_grad: bool | None = False,
    states: Float[Tensor, "B S H"] | None = None,
    decoder: Callable[..., Any] | None = None,
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """Log-probability and entropy (nats) of each masked token under the policy at `temperature`; 0 elsewhere.

    Only masked positions go through the head, a bounded number at a time, and are recomputed in the backward pass. Entropies
    carry gradient only with `entropy_grad`, and are 0 where that is None. `states`: the `prediction_states`, where they are
    known; the decoder is then not run. `decoder`: see `hidden_states`.

    Raises:
        ValueError: where the mask holds the first column, which is not predicted.
    """
    if mask[:, 0].any():
        raise ValueError("token_logprobs: the first token of a row has no prediction and cannot be masked")
    rows, columns = mask.nonzero(as_tuple=True)
    hidden = (
        states[rows, columns]
        if states is not None
        else hidden_states(model, attention_mask, token_ids, decoder=decoder)[rows, columns - 1]
    )
    logprobs, entropy = _head_logprobs(model, hidden, token_ids[rows, columns], temperature, entropy_grad)
    place = (rows, columns)
    empty = torch.zeros(token_ids.shape, dtype=logprobs.dtype, device=logprobs.device)
    return empty.index_put(place, logprobs), empty.index_put(place, entropy)


def target_logprobs(model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log softmax(head(h))[target], a bounded number of logits at a time."""
    return _head_logprobs(model, hidden, targets, 1.0, None)[0]


def _head_logprobs(
    model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"], temperature: float, entropy_grad: bool | None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """As `chunked_logprobs`; several times faster where the head is nothing but a matrix."""
    matrix = None if entropy_grad else head_matrix(model, hidden)
    if matrix is not None and 4 * len(hidden) * len(matrix) > FEW_LOGITS_BYTES:
        scaled = hidden if temperature == 1 else hidden / temperature
        return linear_logprobs(scaled, matrix, targets, LOGITS_CHUNK_BYTES, entropy_grad is not None)
    weight = base_model(model).get_output_embeddings().weight
    return chunked_logprobs(
        lambda h: head_logits(model, h) / temperature,
        hidden,
        targets,
        entropy_grad,
        vocab_size=_unsharded_shape(weight)[0],
        sharded=_is_sharded(weight),
    )


def head_matrix(model: Any, hidden: Tensor) -> torch.nn.Parameter | None:
    """The head's weights [V H], where its logits are their product with the states and nobody has to be asked for the weights.

    Not so: adapters or hooks on the head, a bias, scaled or capped logits, and weights in shards.
    """
    base = base_model(model)
    head, config = base.get_output_embeddings(), base.config.get_text_config()
    hooked = head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head)
    plain = type(head) is torch.nn.Linear and head.bias is None and not hooked
    if not plain or any(getattr(config, name, None) for name in TRANSFORMED_LOGITS):
        return None
    weight = head.weight
    whole = type(weight) is torch.nn.Parameter and not in_shards([weight])
    return weight if whole and weight.dtype == hidden.dtype else None


def rows_per_chunk(vocab_size: int) -> int:
    """How many rows of float32 logits `LOGITS_CHUNK_BYTES` hold; at least one."""
    return max(1, LOGITS_CHUNK_BYTES // (4 * vocab_size))


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "n H"],
    targets: Int[Tensor, " n"],
    entropy_grad: bool | None,
    vocab_size: int,
    sharded: bool = False,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """`log softmax(head(h))[target]` and the entropy of each row, `LOGITS_CHUNK_BYTES` of logits at a time.

    `entropy_grad`: whether entropies carry gradient; None leaves them 0.

    `sharded`: the head's weights are sharded over ranks, which gather them at each call. All ranks then call the head equally
    often, some of them without rows.
    """

    def logprobs_and_entropy(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(head(h), -1)
        chosen = log_p.gather(-1, y[:, None]).squeeze(-1)
        if entropy_grad is None:
            return chosen, torch.zeros_like(chosen)
        basis = log_p if entropy_grad else log_p.detach()
        return chosen, -(basis.exp() * basis).sum(-1)

    size = rows_per_chunk(vocab_size)
    count = -(-len(hidden) // size)
    if sharded:
        count = max(all_gather(count))
    if count <= 1:
        return logprobs_and_entropy(hidden, targets)
    recompute = torch.is_grad_enabled() and hidden.requires_grad
    results = []
    for start in range(0, count * size, size):  # beyond the last row the slices are empty
        h, y = hidden[start : start + size], targets[start : start + size]
        results.append(checkpoint(logprobs_and_entropy, h, y, use_reentrant=False) if recompute else logprobs_and_entropy(h, y))
    return torch.cat([logprobs for logprobs, _ in results]), torch.cat([entropy for _, entropy in results])


def in_shards(weights: Iterable[Tensor]) -> bool:
    """Whether ZeRO-3 divides any of the weights among the ranks, also where they are together at the moment."""
    return any(hasattr(weight, "ds_shape") for weight in weights)


def _is_sharded(weight: Tensor) -> bool:
    """Whether ZeRO-3 has sharded the weight over the ranks at the moment."""
    return hasattr(weight, "ds_shape") and weight.shape != weight.ds_shape


def _unsharded_shape(weight: Tensor) -> torch.Size:
    return getattr(weight, "ds_shape", weight.shape)
