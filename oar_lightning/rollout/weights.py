"""A policy's config and its weights under the names of a Hugging Face checkpoint, for an engine that loads them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from oar_lightning.policy.language_model import base_model


def checkpoint_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as `save_pretrained` would store them: adapters merged into copies, tied tensors once."""
    base = base_model(model)
    adapted = {name: module for name, module in base.named_modules() if getattr(module, "base_layer", None) is not None}
    prefixes = tuple(f"{name}." for name in adapted)
    sent: set[int] = set()  # ids of tensors
    for name, tensor in base.state_dict(keep_vars=True).items():
        layer, _, leaf = name.partition(".base_layer.")
        if id(tensor) in sent or (name.startswith(prefixes) and not leaf):
            continue  # tied to one before, or the adapter itself
        sent.add(id(tensor))
        yield (f"{layer}.{leaf}" if leaf else name), merged(tensor, adapted[layer]) if leaf == "weight" else tensor.detach()


@torch.no_grad()
def merged(weight: Tensor, layer: Any) -> Tensor:
    """A LoRA layer's weight plus the deltas of its active adapters, as a new tensor; the layer is not changed."""
    total = weight.detach()
    if layer.merged or layer.disable_adapters:
        return total
    for adapter in layer.active_adapters:
        total = total + layer.get_delta_weight(adapter).to(total.dtype)
    return total


def save_architecture(model: Any, folder: str) -> None:
    """Save the policy's config for vLLM, with the name of its class, which the config of a model made in code lacks."""
    base = base_model(model)
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]
    config.dtype = base.dtype
    config.save_pretrained(folder)


def count_optimizer_steps(owner: object) -> list[int]:
    """A list of one number, which every optimizer step of this process increases as long as `owner` lives.

    Version counters of parameters do not suffice: fused optimizers write without increasing them.
    """
    steps = [0]

    def count(*_: object) -> None:
        steps[0] += 1

    weakref.finalize(owner, register_optimizer_step_post_hook(count).remove)
    return steps
