"""Frozen weights: checkpoints leave them out, since the policy loads them anyway (LoRA)."""

from __future__ import annotations

from typing import Any

import torch


def leave_out_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """Remove the frozen weights from a checkpoint that is about to be written."""
    frozen = frozen_weights(module)
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k not in frozen}


def fill_in_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """Put the module's own frozen weights into a checkpoint that was read.

    DeepSpeed keeps all weights in files of its own; such a checkpoint has no ``state_dict`` and stays as it is.
    """
    if "state_dict" in checkpoint:
        checkpoint["state_dict"] = frozen_weights(module) | checkpoint["state_dict"]


def frozen_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The frozen parameters of a module, under every name that they have."""
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
