"""An append-only journal of numbered records, and how much of it has been delivered.

``journal.jsonl`` holds one JSON object a line; a record is there once its line break is. Nothing is forced to the disk: the
journal survives the death of the process at any moment, not a power failure. ``state.json`` only remembers how far delivery
got. It is lost without harm, because delivering a record twice changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

JOURNAL, STATE = "journal.jsonl", "state.json"


class JournalInUse(RuntimeError):
    """Another process, or another logger of this one, writes or delivers the journal."""


@dataclass(frozen=True)
class Position:
    """A place between two records: how many come before it, and how many bytes they take."""

    records: int = 0
    bytes: int = 0


class Journal:
    """The journal of a folder, opened for appending by one writer.

    Raises:
        JournalInUse: where it is open already.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / JOURNAL
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise JournalInUse(f"{self.path} is in use by another process") from error
        self._lock = threading.Lock()
        self.end = Position()
        self.earliest = 0
        """The time in ms that the next record bears at least; after a reopening, later than all before."""
        for record, end in read_records(self.path):
            self.end, self.earliest = end, record["time"] + 1
        os.ftruncate(self._file, self.end.bytes)  # a torn last line, which was never acknowledged

    def append(self, kind: str, **content: Any) -> int:
        """Write one record, which is there when this returns; gives its time in ms, which never goes back.

        Raises:
            OSError: where it cannot be written, e.g. on a full disk; the journal is as it was then.
        """
        with self._lock:
            time_ms = max(int(time.time() * 1000), self.earliest)
            record = {"n": self.end.records, "time": time_ms, "kind": kind, **content}
            line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
            try:
                _write_all(self._file, line)
            except OSError:
                os.ftruncate(self._file, self.end.bytes)
                raise
            self.end = Position(self.end.records + 1, self.end.bytes + len(line))
            self.earliest = time_ms
            return time_ms

    def close(self) -> None:
        """Give the journal free; closing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def read_records(path: Path, start: Position = Position()) -> Iterator[tuple[Record, Position]]:
    """Each whole record from `start` on, with the position after it. An unfinished last line is left alone.

    Raises:
        ValueError: for a line that is no record, or not the one that should stand there.
    """
    place = start
    with path.open("rb") as file:
        file.seek(start.bytes)
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{place.records + 1} is not JSON ({error})") from error
            if record["n"] != place.records:
                raise ValueError(f"{path}:{place.records + 1} holds record {record['n']}; lines were lost or repeated")
            place = Position(place.records + 1, place.bytes + len(line))
            yield record, place


@dataclass(frozen=True)
class State:
    """How much of a journal has been delivered, and to which MLflow run."""

    records: int = 0
    bytes: int = 0
    run_id: str | None = None

    @property
    def position(self) -> Position:
        return Position(self.records, self.bytes)

    def save(self, folder: Path) -> None:
        replace_file(folder / STATE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> State:
        """The saved state; the very beginning where there is none that fits the journal."""
        try:
            state = cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # none yet, or one that a power failure tore: deliver again
            return cls()
        return state if state.bytes <= (folder / JOURNAL).stat().st_size else cls()


def undelivered(folder: Path) -> int:
    """How many records of a folder's journal are not delivered yet."""
    return sum(1 for _ in read_records(folder / JOURNAL, State.load(folder).position))


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill in the middle, sees the former text or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")  # the courier may write at the same time
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
