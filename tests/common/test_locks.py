"""Locks on files that others remove."""

from __future__ import annotations

import threading
from pathlib import Path

from oar_lightning.common.locks import FileLock


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "folder" / "lock"), FileLock(tmp_path / "folder" / "lock")
    assert first.acquire()
    assert not second.acquire(wait=False)
    first.release()
    assert second.acquire(wait=False)


def test_a_lock_whose_file_was_removed_is_taken_on_the_new_one(tmp_path: Path) -> None:
    """Else two processes would hold a lock of the same path."""
    first, waiting, third = (FileLock(tmp_path / "lock") for _ in range(3))
    first.acquire()
    thread = threading.Thread(target=waiting.acquire, daemon=True)
    thread.start()
    thread.join(0.2)
    assert waiting.descriptor is None
    first.path.unlink()
    first.release()
    thread.join(10)
    assert waiting.descriptor is not None
    assert not third.acquire(wait=False)
