"""Rows of a study: what is written is read back, and what is not there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pytest

from oar_lightning.reporting.rows import read_rows, write_rows


class Row(NamedTuple):
    name: str
    seed: int
    accuracy: float
    later: float = math.nan


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [Row("a, b", 3, 0.1 + 0.2, 1e-9), Row("", -1, math.inf, 0.0)]
    write_rows(Row, tmp_path / "runs.csv", rows)
    assert read_rows(Row, tmp_path / "runs.csv") == rows
    assert (tmp_path / "runs.csv").read_bytes().startswith(b'name,seed,accuracy,later\n"a, b",3,')


def test_what_was_not_recorded_is_an_empty_cell_and_a_column_of_later_its_default(tmp_path: Path) -> None:
    write_rows(Row, tmp_path / "runs.csv", [Row("a", 0, math.nan, 1.0)])
    assert (tmp_path / "runs.csv").read_text(encoding="utf-8").splitlines()[1] == "a,0,,1.0"
    (row,) = read_rows(Row, tmp_path / "runs.csv")
    assert math.isnan(row.accuracy)
    (tmp_path / "old.csv").write_text("name,seed,accuracy\na,0,0.5\n", encoding="utf-8")
    (old,) = read_rows(Row, tmp_path / "old.csv")
    assert old[:3] == ("a", 0, 0.5)
    assert math.isnan(old.later)


def test_a_column_that_no_row_has_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("name,sed\na,0\n", encoding="utf-8")
    with pytest.raises(KeyError, match="sed"):
        read_rows(Row, tmp_path / "runs.csv")
