"""Where the Hydra configs are: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The folder of config.yaml."""
    packaged = PACKAGE / "_conf" / "conf"
    return packaged if packaged.is_dir() else PACKAGE.parent / "conf"
