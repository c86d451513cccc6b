"""What was sampled, kept on disk: killed and started again, a lab samples nothing twice."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

BUSY = 60.0
"""Seconds for which another lab's transaction on the same file is waited for."""

AT_ONCE = 500
"""Keys of one query; SQLite's builds allow 999 at least."""


class Store:
    """Keeps values by key in an SQLite file, which only grows.

    `put` is one transaction: after a kill all of its values are there, or none. Several processes may share a file.
    """

    def __init__(self, path: Path, identity: str) -> None:
        """`identity`: what all values depend on, such as policy and sampling settings; part of each key.

        Raises:
            ValueError: where the file is no such store, or cannot be written.
        """
        self.identity = identity.encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.database = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
            self.database.execute("PRAGMA journal_mode=WAL")
            self.database.execute("PRAGMA synchronous=NORMAL")
            self.database.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
            self.database.execute("SELECT key, value FROM kept LIMIT 1").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise ValueError(f"lab.cache={path} cannot be used ({error}); name another file, or remove it") from error

    def key(self, *parts: bytes) -> bytes:
        """The key of what the parts determine."""
        digest = hashlib.sha256(self.identity)
        for part in parts:
            digest.update(hashlib.sha256(part).digest())
        return digest.digest()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        wanted = list(dict.fromkeys(keys))
        found: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            query = f"SELECT key, value FROM kept WHERE key IN ({','.join('?' * len(some))})"
            found.update(self.database.execute(query, some))
        return found

    def put(self, values: Mapping[bytes, bytes]) -> None:
        """Keep the values; a key that is there already stays as it is."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            self.database.executemany("INSERT OR IGNORE INTO kept VALUES (?, ?)", values.items())
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")

    def close(self) -> None:
        self.database.close()
