"""A composed config as plain containers."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain containers."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(k): v for k, v in resolved.items()}
