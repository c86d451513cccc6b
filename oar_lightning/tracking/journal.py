"""An append-only journal of numbered records, and the state of its delivery.

``journal.jsonl`` holds one JSON object a line; a record counts once its line break is written. There is no fsync: the journal
survives the death of the process at any moment, but not a power failure. ``state.json`` stores how many records are
delivered. Losing it does no harm, because delivering a record twice changes nothing. ``later.jsonl`` holds those of them whose
files could not be uploaded; each delivery tries them again.

Own code, since MLflow's client keeps what it has not sent in memory: a kill loses it, and a server that is away stops or fails
the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oar_lightning.common.outputs import replace_file

Record = dict[str, Any]

JOURNAL, STATE, PUT_ASIDE = "journal.jsonl", "state.json", "later.jsonl"


class JournalInUse(RuntimeError):
    """Raised where another process, or another logger of this process, writes or delivers the journal."""


@dataclass(frozen=True)
class Position:
    """A position between two records: the number of records before it, and their bytes."""

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
        """Lower bound, in ms, on the time of the next record; after reopening it is later than all earlier times."""
        for record, end in read_records(self.path):
            self.end, self.earliest = end, record["time"] + 1
        os.ftruncate(self._file, self.end.bytes)  # drop an unfinished last line, whose `append` never returned

    def append(self, kind: str, **content: Any) -> int:
        """Write one record and return its time in ms; times never decrease. The record is in the file on return.

        Raises:
            OSError: where it cannot be written, e.g. on a full disk; the journal is then unchanged.
        """
        with self._lock:
            time_ms = max(int(time.time() * 1000), self.earliest)
            record = {"n": self.end.records, "time": time_ms, "kind": kind, **content}
            line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
            try:
                _write_all(self._file, line)
                self.end = Position(self.end.records + 1, self.end.bytes + len(line))
            except BaseException:  # a second Ctrl-C, too: what is not counted must not be there
                os.ftruncate(self._file, self.end.bytes)
                raise
            self.earliest = time_ms
            return time_ms

    def close(self) -> None:
        """Close the file and release the journal; closing twice is allowed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def read_records(path: Path, start: Position = Position()) -> Iterator[tuple[Record, Position]]:
    """Each complete record from `start` on, with the position after it. An unfinished last line is ignored.

    Raises:
        ValueError: for a line that is not JSON, or a record whose number does not fit its line.
    """
    position = start
    with path.open("rb") as file:
        file.seek(start.bytes)
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{position.records + 1} is not JSON ({error})") from error
            if record["n"] != position.records:
                raise ValueError(f"{path}:{position.records + 1} holds record {record['n']}; lines were lost or repeated")
            position = Position(position.records + 1, position.bytes + len(line))
            yield record, position


@dataclass(frozen=True)
class State:
    """The part of a journal that has been delivered, and the id of its MLflow run."""

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
        """The saved state; the state of an undelivered journal where none is saved or the saved one does not fit."""
        try:
            state = cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # none yet, or one that a power failure damaged: deliver again
            return cls()
        return state if state.bytes <= (folder / JOURNAL).stat().st_size else cls()


def put_aside(folder: Path) -> list[Record]:
    """Delivered records whose files could not be uploaded yet; none where the state is gone, since the whole journal is then
    delivered anew."""
    path = folder / PUT_ASIDE
    if not path.exists() or State.load(folder).run_id is None:
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def keep_aside(folder: Path, records: Iterable[Record]) -> None:
    """Put these records, and no others, aside."""
    replace_file(folder / PUT_ASIDE, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))


def undelivered(folder: Path) -> int:
    """Number of records of a folder's journal that are not delivered yet, those that were put aside among them."""
    return sum(1 for _ in read_records(folder / JOURNAL, State.load(folder).position)) + len(put_aside(folder))
