"""A Hugging Face causal LM's head: logits and log-probabilities at chosen positions.

Decoder and head run separately: logits exist only where they are read, and a float32 ``[B, S, V]`` is never materialised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.language_model import base_model, hidden_states
from oar_lightning.policy.linear_logprobs import linear_logprobs
from oar_lightning.policy.products import multiply

LOGITS_CHUNK_BYTES = 64 * 2**20
"""Float32 logits alive at any time in `token_logprobs`: 16 Mi floats, 110 tokens of a 152k vocabulary."""

FEW_LOGITS_BYTES = 8 * 2**20
"""Up to so many float32 logits in all, keeping them for the backward pass is cheaper than making them again in tiles."""

TRANSFORMED_LOGITS = ("logits_scaling", "logit_scale", "final_logit_softcapping")
"""Settings of families whose logits are more than the head's output (`head_logits`)."""


def head_logits(model: Any, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Float32 (or float64) logits of given hidden states, with the family's own scaling or soft cap."""
    base, matrix = base_model(model), head_matrix(model, hidden)
    logits = base.get_output_embeddings()(hidden) if matrix is None else multiply(hidden, matrix)
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
    if not expected.isfinite().all():
        raise ValueError(
            f"policy.name: the logits of {type(base_model(model)).__name__} are not finite; its weights are damaged, or "
            "policy.dtype has too small a range for them (bfloat16 and float32 have the same)"
        )
    scale = expected.abs().max().clamp(min=1.0)
    if not torch.allclose(actual / scale, expected / scale, atol=tolerance):
        raise ValueError(
            f"policy.name: {type(base_model(model)).__name__} transforms its logits in a way that is not known here "
            f"(largest difference {float((actual - expected).abs().max()):.3g}); add it to lm_head.head_logits"
        )


def token_logprobs(
    model: Any,
    token_ids: Int[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
    temperature: float = 1.0,
    entropy_grad: bool | None = False,
    states: Float[Tensor, "B S H"] | Float[Tensor, "k H"] | None = None,
    decoder: Callable[..., Any] | None = None,
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """Log-probability and entropy (nats) of each masked token under the policy at `temperature`; 0 elsewhere.

    Only masked positions go through the head, a bounded number at a time, and are recomputed in the backward pass. Entropies
    carry gradient only with `entropy_grad`, and are 0 where that is None. `states`: the `prediction_states`, where they are
    known, of all columns or row by row of the masked tokens alone; the decoder is then not run. `decoder`: see `hidden_states`.

    Raises:
        ValueError: where the mask holds the first column, which is not predicted.
    """
    if mask[:, 0].any():
        raise ValueError("token_logprobs: the first token of a row has no prediction and cannot be masked")
    rows, columns = mask.nonzero(as_tuple=True)
    if states is None:
        states = hidden_states(model, attention_mask, token_ids, decoder=decoder)[rows, columns - 1]
    elif states.ndim == 3:
        states = states[rows, columns]
    logprobs, entropy = _head_logprobs(model, states, token_ids[rows, columns], temperature, entropy_grad)
    place = (rows, columns)
    empty = torch.zeros(token_ids.shape, dtype=logprobs.dtype, device=logprobs.device)
    return empty.index_put(place, logprobs), empty.index_put(place, entropy)


def target_logprobs(
    model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"], temperature: float = 1.0
) -> Float[Tensor, " n"]:
    """log softmax(head(h) / temperature)[target], a bounded number of logits at a time."""
    return _head_logprobs(model, hidden, targets, temperature, None)[0]


def _head_logprobs(
    model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"], temperature: float, entropy_grad: bool | None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """As `chunked_logprobs`; several times faster where the head is nothing but a matrix."""
    matrix = None if entropy_grad else head_matrix(model, hidden)
    if matrix is not None and 4 * len(hidden) * len(matrix) > FEW_LOGITS_BYTES:
        return linear_logprobs(hidden, matrix, targets, LOGITS_CHUNK_BYTES, entropy_grad is not None, temperature)
    weight = base_model(model).get_output_embeddings().weight
    return chunked_logprobs(
        lambda h: head_logits(model, h) if temperature == 1 else head_logits(model, h) / temperature,
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
        if entropy_grad:
            return chosen, -(log_p.exp() * log_p).sum(-1)
        log_p = log_p.detach()
        return chosen, -log_p.exp().mul_(log_p).sum(-1)

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
