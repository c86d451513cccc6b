"""Weights that are not trained, which checkpoints leave out."""

from __future__ import annotations

from typing import Any

import torch


def leave_out_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """Keep weights that are not trained, which a LoRA policy loads anyway, out of a checkpoint."""
    frozen = frozen_weights(module)
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k not in frozen}


def fill_in_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """The module's own in their place. (DeepSpeed keeps weights in files of its own, and has no state here.)"""
    if "state_dict" in checkpoint:
        checkpoint["state_dict"] = frozen_weights(module) | checkpoint["state_dict"]


def frozen_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that are not trained, under every name that they have."""
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
