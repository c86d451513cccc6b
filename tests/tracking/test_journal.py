"""The journal: what was acknowledged is there, whatever happens to the process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oar_lightning.tracking.journal import Journal, JournalInUse, Position, State, read_records

WRITER = """
import sys
from pathlib import Path
from oar_lightning.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]))
for i in range(10**9):
    journal.append("metrics", step=i, values={"loss": i / 7, "text": "x" * 500})
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
"""


def steps(folder: Path) -> list[int]:
    return [record["step"] for record, _ in read_records(folder / "journal.jsonl")]


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    draw = random.Random(0)
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        moment = time.monotonic() + draw.uniform(0.05, 0.3)
        while time.monotonic() < moment:
            said.append(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate()[0]
        acknowledged = int([line for line in ("".join(said) + rest).splitlines(keepends=True) if line.endswith("\n")][-1])
        found = steps(folder)
        assert found == list(range(len(found)))
        assert len(found) > acknowledged > 10
        Journal(folder).append("metrics", step=len(found), values={})  # its lock has died with it, and it goes on
        assert steps(folder)[-1] == len(found)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    for step in range(3):
        journal.append("metrics", step=step, values={"ä": float("nan")})
    journal.close()
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-cut])
    assert steps(tmp_path) == [0, 1], "a reader leaves it alone"
    again = Journal(tmp_path)
    assert again.end == Position(2, whole[:-cut].rindex(b"\n") + 1)
    again.append("metrics", step=7, values={})
    assert steps(tmp_path) == [0, 1, 7]


def test_reading_goes_on_from_any_position(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in range(5):
        journal.append("metrics", step=step, values={"é": "x" * step})
    places = [place for _, place in read_records(journal.path)]
    assert [r["step"] for r, _ in read_records(journal.path, places[2])] == [3, 4]
    assert places[-1] == journal.end


def test_times_never_go_back_and_a_reopening_is_later_than_all_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 90.0, 90.0])
    monkeypatch.setattr("oar_lightning.tracking.journal.time.time", lambda: next(clock))
    journal = Journal(tmp_path)
    assert [journal.append("a"), journal.append("b")] == [100_000, 100_000]
    journal.close()
    assert Journal(tmp_path).append("c") == 100_001


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(JournalInUse, match="in use"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path)


def test_a_damaged_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in range(3):
        journal.append("metrics", step=step, values={})
    lines = journal.path.read_text().splitlines(keepends=True)
    journal.path.write_text(lines[0] + lines[2])
    with pytest.raises(ValueError, match=r"journal.jsonl:2 holds record 2"):
        steps(tmp_path)
    journal.path.write_text(lines[0] + "{]\n")
    with pytest.raises(ValueError, match=r"journal.jsonl:2 is not JSON"):
        steps(tmp_path)


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.append("metrics", step=0, values={})
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 20:
            return write(file, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oar_lightning.tracking.journal.os.write", full)
    with pytest.raises(OSError, match="No space"):
        journal.append("metrics", step=1, values={"a": 1.0})
    monkeypatch.undo()
    journal.append("metrics", step=2, values={})
    assert steps(tmp_path) == [0, 2]


def test_an_interruption_right_after_a_write_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    journal.append("metrics", step=0, values={})
    write = os.write

    def interrupted(file: int, data: bytes) -> int:
        write(file, data)
        raise KeyboardInterrupt

    monkeypatch.setattr("oar_lightning.tracking.journal.os.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.append("metrics", step=1, values={})
    monkeypatch.undo()
    journal.append("metrics", step=2, values={})
    assert steps(tmp_path) == [0, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"records": 9, "bytes": 10**6, "run_id": "a"})])
def test_a_state_that_does_not_fit_is_the_beginning(tmp_path: Path, text: str) -> None:
    Journal(tmp_path).append("metrics")
    (tmp_path / "state.json").write_text(text)
    assert State.load(tmp_path) == State()


def test_a_state_survives(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append("metrics")
    State(1, journal.end.bytes, "abc").save(tmp_path)
    assert State.load(tmp_path) == State(1, journal.end.bytes, "abc")
