"""Which models have a plain decoder, and how it is made of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oar_lightning.policy.decoder.plain import PlainDecoder, PlainLayer
from oar_lightning.policy.language_model import base_model, can_share_prefixes
from oar_lightning.policy.lm_head import in_shards
from oar_lightning.policy.products import Weights, fixed_weights

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles depend on the position alone."""
WEIGHTS_BYTES = 2**30
"""Models with more bytes in their layers keep their modules: the weights here are a copy, and large products leave little to
gain."""
LEARNING_BYTES = 2**26
"""The same where gradients are kept: copies of the weights and of their gradients live until the backward pass is over."""


@torch.no_grad()
def plain_decoder(model: Any, pack: bool = True) -> PlainDecoder | None:
    """The model's decoder in the plain form; None for other architectures and decoders larger than `WEIGHTS_BYTES`. `pack`: the
    weights, for passes without gradients, which takes a second copy."""
    return _plain_form(model, pack) if _has_plain_form(model, WEIGHTS_BYTES) else None


@torch.enable_grad()
def learning_decoder(model: Any) -> PlainDecoder | None:
    """The plain form with gradients to the model's parameters, where it `has_learning_decoder`."""
    return _plain_form(model, pack=False) if has_learning_decoder(model) else None


def has_learning_decoder(model: Any) -> bool:
    """Not for decoders larger than `LEARNING_BYTES`, nor for what the plain form does not do: dropout, gradient checkpointing,
    weights in shards, other architectures."""
    base = base_model(model)
    # the model's own answer has another name in each version of transformers
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in base.modules())
    if recomputes or in_shards(base.parameters()) or getattr(base.config, "attention_dropout", None):
        return False
    return _has_plain_form(model, LEARNING_BYTES)


def _has_plain_form(model: Any, most_bytes: int) -> bool:
    decoder = base_model(model).get_decoder()
    return type(decoder).__name__ in FAMILIES and can_share_prefixes(model) and _is_plain(decoder, most_bytes)


def _plain_form(model: Any, pack: bool) -> PlainDecoder:
    decoder = base_model(model).get_decoder()
    config = decoder.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, groups = config.num_attention_heads, config.num_key_value_heads

    def paired(weight: Tensor) -> Tensor:
        """Rows i and i + d/2 of each head side by side."""
        return weight.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)

    def held(weight: Any) -> Any:
        """The weight itself; for scoring without its gradient, for which a backward pass would keep the layer's inputs."""
        return weight if weight is None or torch.is_grad_enabled() else weight.detach()

    def weights(matrix: Tensor) -> Weights:
        return fixed_weights(matrix) if pack else Weights(held(matrix))

    layers = []
    for number, block in enumerate(decoder.layers):
        attention, mlp = block.self_attn, block.mlp
        query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
        biases = None if query.bias is None else torch.cat([paired(query.bias), paired(key.bias), value.bias])
        norms = None
        if hasattr(attention, "q_norm"):
            norms = torch.cat(
                [paired(norm.weight).expand(n, -1) for norm, n in ((attention.q_norm, heads), (attention.k_norm, groups))]
            )
        qkv = torch.cat([paired(query.weight), paired(key.weight), value.weight]) * block.input_layernorm.weight
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * block.post_attention_layernorm.weight
        is_last = number + 1 == len(decoder.layers)
        layers.append(
            PlainLayer(
                qkv=weights(qkv),
                keys_values=weights(qkv[heads * head_size :]) if is_last else None,
                qkv_bias=biases,
                head_norm=norms,
                output=weights(attention.o_proj.weight),
                output_bias=held(attention.o_proj.bias),
                gate_up=weights(gate_up),
                down=weights(mlp.down_proj.weight),
            )
        )
    norm = held(decoder.norm.weight)
    return PlainDecoder(heads, groups, head_size, norm.new_tensor(config.rms_norm_eps), tuple(layers), norm, decoder.rotary_emb)


def _is_plain(decoder: Any, most_bytes: int) -> bool:
    """Whether `PlainDecoder` computes all that the layers do, and supports their precision and size."""
    config = decoder.config
    weights = [*decoder.layers.parameters(), decoder.norm.weight]
    products = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    named = [(name.rpartition(".")[2], module) for name, module in decoder.layers.named_modules()]
    return (
        all(type(module) is nn.Linear for name, module in named if name in products)  # adapters are other classes
        and not any(module._forward_hooks or module._forward_pre_hooks for _, module in named)
        and all(
            getattr(block.mlp, name).bias is None for block in decoder.layers for name in ("gate_proj", "up_proj", "down_proj")
        )
        and config.hidden_act == "silu"
        and (config.rope_parameters or {}).get("rope_type") in ROPE_TYPES
        and len({(w.dtype, w.device) for w in weights}) == 1
        and not torch.is_autocast_enabled(weights[0].device.type)
        and sum(w.numel() * w.element_size() for w in weights) <= most_bytes
    )
