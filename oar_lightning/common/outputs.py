"""Output files of tasks: a task writes them at its end, but checks them at its start."""

from __future__ import annotations

from pathlib import Path

from oar_lightning.common.config_check import ConfigError


def output_path(value: str | None, key: str) -> Path | None:
    """The path that a setting names, after its folder was created; None stays None.

    Raises:
        ConfigError: where the folder cannot be created.
    """
    if value is None:
        return None
    path = Path(value).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}={path} cannot be written ({error}); choose another path") from error
    return path
