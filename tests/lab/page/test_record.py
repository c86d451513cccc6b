"""What a lab has written is read again, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.lab_records import record, write

from oar_lightning.lab.page.record import RESULTS, TOKENS, LabRecord


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = LabRecord.read(write(record(), tmp_path))
    assert found == record()
    assert found.ranking == ["strong", "weak", "middle"]
    assert found.contenders == ["strong", "middle"]


def test_where_all_are_controls_all_are_contenders() -> None:
    found = record()
    for own in found.results["estimators"].values():
        own["control"] = True
    assert found.contenders == found.ranking


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (RESULTS, None, "does not hold"),
        (RESULTS, b"{", "does not hold"),
        (RESULTS, b"[]", "is not a lab's"),
        (RESULTS, json.dumps({"completions": []}).encode(), "has no truths, estimators"),
        (TOKENS, None, "does not hold"),
        (TOKENS, b"not gzip", "does not hold"),
    ],
)
def test_what_is_not_a_labs_is_refused(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    write(record(), tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        LabRecord.read(tmp_path)


def test_a_part_of_the_tokens_is_refused(tmp_path: Path) -> None:
    found = record()
    write(LabRecord(found.results, found.rows[:3]), tmp_path)
    with pytest.raises(ValueError, match="3 completions"):
        LabRecord.read(tmp_path)
    whole = (write(found, tmp_path) / TOKENS).read_bytes()
    (tmp_path / TOKENS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="does not hold"):
        LabRecord.read(tmp_path)
