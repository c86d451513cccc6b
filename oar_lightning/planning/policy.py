"""A policy with shapes and dtypes but without weights, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from oar_lightning.policy.language_model import turn_dropout_off
from oar_lightning.policy.location import check_location
from oar_lightning.policy.pretrained import DTYPES, PretrainedPolicy, checkpoint_gradients, explained_load_errors


@dataclass(frozen=True)
class PolicySize:
    """Numbers and bytes of a policy's parameters as they are loaded, the size of the largest trained one, the hidden size."""

    trained: int
    frozen: int
    trained_bytes: int
    frozen_bytes: int
    largest: int
    hidden: int

    @property
    def parameters(self) -> int:
        return self.trained + self.frozen

    @property
    def bytes(self) -> int:
        return self.trained_bytes + self.frozen_bytes


def policy_without_weights(spec: PretrainedPolicy, dtype: torch.dtype | None = None) -> Any:
    """The policy of `PretrainedPolicy.load`, made from its config.json alone. Call and use it inside `no_memory`.

    Dropout is off. `dtype`: the dtype to which the trainer converts the parameters.

    Raises:
        ValueError: where the policy's config cannot be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_location(spec.location(), spec.revision, tokenizer=False, key=spec.key)
    with unset_fake_temporarily(), explained_load_errors(spec.name, spec.key), torch.device("meta"):
        config = AutoConfig.from_pretrained(spec.location(), revision=spec.revision, trust_remote_code=spec.trust_remote_code)
        wanted = DTYPES[spec.dtype]
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=(config.dtype or torch.float32) if wanted == "auto" else wanted,
            attn_implementation="eager" if spec.attention == "eager" else "sdpa",
            trust_remote_code=spec.trust_remote_code,
        )
    turn_dropout_off(model)
    if spec.lora is not None:
        with unset_fake_temporarily():  # peft moves its adapters, which tensors of a fake mode refuse
            model = spec.lora.apply(model)
    if spec.gradient_checkpointing:
        checkpoint_gradients(model, lora=spec.lora is not None)
    _on_cpu(model, dtype)
    return model.eval()


def _on_cpu(model: Any, dtype: torch.dtype | None) -> None:
    """Replace the meta tensors of parameters and buffers by CPU tensors, because the meta device supports neither fused
    attention nor autocast. Tied parameters stay tied."""
    replaced: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.empty(old.shape, dtype=dtype or old.dtype)
                module._parameters[name] = replaced.setdefault(id(old), torch.nn.Parameter(new, old.requires_grad))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def policy_size(model: Any) -> PolicySize:
    """The sizes of a model, with weights or without; tied weights count once."""
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    frozen = [p for p in parameters if not p.requires_grad]
    return PolicySize(
        trained=sum(p.numel() for p in trained),
        frozen=sum(p.numel() for p in frozen),
        trained_bytes=sum(p.numel() * p.element_size() for p in trained),
        frozen_bytes=sum(p.numel() * p.element_size() for p in frozen),
        largest=max((p.numel() for p in trained), default=0),
        hidden=model.get_input_embeddings().weight.shape[1],
    )
