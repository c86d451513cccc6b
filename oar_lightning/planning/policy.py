"""A policy that has shapes and types but no weights, and what can be read off it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from oar_lightning.decoder.plain import FAMILIES, WEIGHTS_BYTES
from oar_lightning.language_model import base_model
from oar_lightning.policy import DTYPES, PretrainedPolicy, helpful

ATTENTION = "oar_lightning_plan"
"""Fused attention, which keeps no weights, under a name for which `transformers` makes no mask."""


@dataclass(frozen=True)
class PolicySize:
    """Parameters of a policy, in numbers and bytes as they are loaded, and the dimensions that memory depends on.

    `layer_bytes`: of the decoder's layers without embeddings. `plain`: whether scoring in float32 runs `PlainDecoder`.
    """

    trained: int
    frozen: int
    trained_bytes: int
    frozen_bytes: int
    largest: int
    layer_bytes: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    plain: bool

    @property
    def parameters(self) -> int:
        return self.trained + self.frozen

    @property
    def bytes(self) -> int:
        return self.trained_bytes + self.frozen_bytes


@contextlib.contextmanager
def no_memory() -> Iterator[None]:
    """Inside the block tensors have shapes, types and a device, and no values."""
    with FakeTensorMode():
        yield


def policy_without_weights(spec: PretrainedPolicy, dtype: torch.dtype | None = None) -> Any:
    """The policy as `PretrainedPolicy.load` gives it, from its config.json alone; to be called and used in `no_memory`.

    Dropout is off. `dtype`: what the trainer converts the parameters to.

    Raises:
        ValueError: where its config is not at hand.
    """
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, _fused_attention)
    with unset_fake_temporarily(), helpful(spec.name), torch.device("meta"):
        config = AutoConfig.from_pretrained(spec.location(), revision=spec.revision, trust_remote_code=spec.trust_remote_code)
        wanted = DTYPES[spec.dtype]
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=(config.dtype or torch.float32) if wanted == "auto" else wanted,
            attn_implementation="eager" if spec.attention == "eager" else ATTENTION,
            trust_remote_code=spec.trust_remote_code,
        )
    if spec.lora is not None:
        with unset_fake_temporarily():  # peft moves its adapters, which tensors of a fake mode refuse
            model = spec.lora.apply(model)
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if spec.lora is not None:
            model.enable_input_require_grads()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    _on_cpu(model, dtype)
    return model.eval()


def _on_cpu(model: Any, dtype: torch.dtype | None) -> None:
    """Replace parameters and buffers on the meta device, which knows neither fused attention nor autocast. Tied ones stay
    tied."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.empty(old.shape, dtype=dtype or old.dtype)
                module._parameters[name] = made.setdefault(id(old), torch.nn.Parameter(new, old.requires_grad))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _fused_attention(module: torch.nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, query, key, value, mask, **options | {"dropout": 0.0})


def policy_size(model: Any) -> PolicySize:
    """Counts of a model, with weights or without; tied weights count once."""
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    frozen = [p for p in parameters if not p.requires_grad]
    decoder = base_model(model).get_decoder()
    config = decoder.config
    heads = config.num_attention_heads
    layer_bytes = sum(p.numel() * p.element_size() for p in parameters) - sum(
        p.numel() * p.element_size()
        for p in {id(e): e for e in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)}.values()
    )
    return PolicySize(
        trained=sum(p.numel() for p in trained),
        frozen=sum(p.numel() for p in frozen),
        trained_bytes=sum(p.numel() * p.element_size() for p in trained),
        frozen_bytes=sum(p.numel() * p.element_size() for p in frozen),
        largest=max((p.numel() for p in trained), default=0),
        layer_bytes=layer_bytes,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        plain=type(decoder).__name__ in FAMILIES
        and {p.dtype for p in parameters} == {torch.float32}
        and not frozen
        and layer_bytes <= WEIGHTS_BYTES,
    )
