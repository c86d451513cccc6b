"""Finds the setting that a library refuses, whose error names it in its own words or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.messages import one_line


def explained(make: Callable[..., Any], settings: Mapping[str, Any], where: str) -> Any:
    """`make(**settings)`; `where` is the block of the config that holds the settings.

    Raises:
        ConfigError: where that fails. It names the setting without which it succeeds.
    """
    try:
        return make(**settings)
    except Exception as error:  # of a library: it raises what it likes
        key = next((key for key in settings if _succeeds(make, {k: v for k, v in settings.items() if k != key})), None)
        what = where if key is None else f"{where}.{key}={settings[key]}"
        text = one_line(error.__cause__ or error)
        raise ConfigError(f"{what} is refused ({text}); correct it, or leave it out for the default of the library") from error


def _succeeds(make: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    try:
        make(**settings)
    except Exception:
        return False
    return True
