"""Nested mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; a list stays one value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and value:
            flat.update(flatten(value, name))
        else:
            flat[name] = value
    return flat


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The keys that both have, with another value each."""
    return [key for key, value in now.items() if before.get(key, value) != value]
