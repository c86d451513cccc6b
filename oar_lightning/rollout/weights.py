"""A policy as another program would load it: its configuration, and its weights under the names of a checkpoint."""

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
    """Names and tensors as `save_pretrained` would store them: adapters merged into copies, one of tied tensors.

    Raises:
        ValueError: for an adapter on one of two tied tensors, which are one in a checkpoint.
    """
    base = base_model(model)
    adapted = {name: module for name, module in base.named_modules() if getattr(module, "base_layer", None) is not None}
    inside = tuple(f"{name}." for name in adapted)
    seen: dict[int, bool] = {}
    for name, tensor in base.state_dict(keep_vars=True).items():
        layer, _, leaf = name.partition(".base_layer.")
        if name.startswith(inside) and not leaf:
            continue  # the adapter itself
        changed = bool(leaf) and leaf == "weight"
        if id(tensor) in seen:
            if changed or seen[id(tensor)]:
                raise ValueError(
                    f"engine=vllm: policy.lora.target_modules adapts one of two tied layers ({name}); leave both out"
                )
            continue
        seen[id(tensor)] = changed
        yield (f"{layer}.{leaf}" if leaf else name), merged(tensor, adapted[layer]) if changed else tensor.detach()


@torch.no_grad()
def merged(weight: Tensor, layer: Any) -> Tensor:
    """A LoRA layer's weight plus what its active adapters add, as a new tensor; the layer stays as it is."""
    total = weight.detach()
    if layer.merged or layer.disable_adapters:
        return total
    for adapter in layer.active_adapters:
        total = total + layer.get_delta_weight(adapter).to(total.dtype)
    return total


def save_architecture(model: Any, folder: str) -> None:
    """The policy's configuration as vLLM reads it; a model made in code does not name its class there."""
    base = base_model(model)
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]
    config.dtype = base.dtype
    config.save_pretrained(folder)


def count_optimizer_steps(owner: object) -> list[int]:
    """One number, raised by every optimizer step of this process as long as `owner` lives.

    Versions of parameters do not tell all: fused optimizers write without raising them.
    """
    steps = [0]

    def count(*_: object) -> None:
        steps[0] += 1

    weakref.finalize(owner, register_optimizer_step_post_hook(count).remove)
    return steps
