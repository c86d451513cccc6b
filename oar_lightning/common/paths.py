"""Paths of the Hydra configs (inside the wheel, or beside the package in a checkout) and of MLflow's local stores."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from oar_lightning.common.config_check import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The folder of config.yaml."""
    packaged = PACKAGE / "_conf" / "conf"
    return packaged if packaged.is_dir() else PACKAGE.parent / "conf"


def sweeps_dir() -> Path:
    """The folder of the sweep files, beside that of the configs."""
    return conf_dir().parent / "sweeps"


def files_of(patterns: str | Sequence[str], key: str, kinds: str = "JSONL files (gzip too)") -> list[Path]:
    """The files of one or several names (which may hold brackets) or glob patterns, each once; those of a pattern in order.

    `key` is the setting that holds the patterns, `kinds` what it takes, both for the error.

    Raises:
        ValueError: where a pattern matches none.
    """
    found: dict[Path, Path] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(pattern).expanduser()
        matches = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(str(path)))]
        files = [match for match in matches if not match.is_dir()]
        if not files:
            what = "a folder" if matches else "no such file"
            raise ValueError(f"{key}={pattern}: {what}; give {kinds} or patterns, from {Path.cwd()}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def addressable(database: Path, key: str) -> Path:
    """The same path of an SQLite database, where an address `sqlite:///<path>` names that file and no other.

    Raises:
        ConfigError: where the path has ? or % with digits, behind which addresses have options and characters by their number.
    """
    if "?" in str(database) or unquote(str(database)) != str(database):
        raise ConfigError(
            f"{key}={database}: with ? or %-codes in its path the address of a database names another file; "
            f"run in another folder, or set {key} to a path without them"
        )
    return database


def local_database(tracking_uri: str) -> Path | None:
    """The file of an SQLite tracking URI; None for a server.

    Raises:
        ConfigError: as `addressable`.
    """
    if not tracking_uri.startswith("sqlite:///"):
        return None
    return addressable(Path(tracking_uri.removeprefix("sqlite:///")).absolute(), "logger.tracking_uri")


def local_artifacts(tracking_uri: str) -> str | None:
    """The artifact folder beside an SQLite store; None for a server, which has its own."""
    database = local_database(tracking_uri)
    return str(database.parent / "mlartifacts") if database else None
