"""Output files of tasks: a task writes them at its end, but checks them at its start, and creates nothing then."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from oar_lightning.common.config_check import ConfigError


def output_path(value: str | None, key: str) -> Path | None:
    """The file that a setting names; None stays None. Its folder may still have to be made.

    Raises:
        ConfigError: where it is a folder, or cannot be written.
    """
    if value is None:
        return None
    path = Path(value).expanduser()
    if path.is_dir():
        raise ConfigError(f"{key}={path} is a folder; give a file, e.g. {key}={path / 'output.json'}")
    output_folder(str(path.parent), key, path)
    return path


def output_folder(value: str, key: str, shown: Path | None = None) -> Path:
    """The folder that a setting names. It may still have to be made.

    Raises:
        ConfigError: where it is a file, or cannot be made or written. `shown`: the value in the message.
    """
    folder = Path(value).expanduser()
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
        with tempfile.TemporaryDirectory(dir=existing, prefix=".oar_lightning_"):  # permissions do not say all, as of /proc
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = f"{existing} is a file"
        raise ConfigError(f"{key}={shown or folder} cannot be written ({reason}); choose another path") from error
    return folder


def new_file(value: str | None, key: str) -> Path | None:
    """The file that a setting names, which is not there yet: what it holds may be what was meant to be read.

    Raises:
        ConfigError: as `output_path`, and where the file exists.
    """
    path = output_path(value, key)
    if path is not None and path.exists():
        raise ConfigError(f"{key}={path} exists; remove it or name another file")
    return path


def page_folder(value: str, key: str, title: str) -> Path:
    """The folder that a setting names for a page, whose README.md begins with `title`.

    Raises:
        ConfigError: as `output_folder`, and where the folder has another README.md.
    """
    folder = output_folder(value, key)
    readme = folder / "README.md"
    if readme.is_file() and not readme.read_text(encoding="utf-8", errors="replace").startswith(title):
        raise ConfigError(f"{key}={folder}: its README.md is another page, which would be lost; name another folder")
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a file, whose folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, a text as UTF-8: a reader sees the former content or the new one, also after a kill or without
    power."""
    # one temporary file a thread: the courier may write at the same time
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
