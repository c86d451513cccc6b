"""Tables on a narrow console. tests/tasks/test_tables.py has those that commands print."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from support.console import rendered

from oar_lightning.common.tables import ConsoleTable, printable

INTERVAL = "68.1 % [65.2, 71.0]"


def test_a_table_that_fits_is_one_table() -> None:
    lines = rendered(ConsoleTable("Title", ("name", "a", "b"), [["x", "1", "22"], ["yy", "3", ""]]))
    assert lines[0] == "Title"
    assert [line.split() for line in lines if "│" in line] == [
        ["│", "x", "│", "1", "│", "22", "│"],
        ["│", "yy", "│", "3", "│", "│"],
    ]


def test_a_wide_table_is_divided_and_keeps_its_keys() -> None:
    header = ("method", *(f"set {i}" for i in range(6)))
    lines = rendered(ConsoleTable("t", header, [["grpo", *[INTERVAL] * 6], ["oar_g", *[INTERVAL] * 6]]))
    assert max(map(len, lines)) <= 80
    assert [line.count(INTERVAL) for line in lines if "grpo" in line] == [3, 3]
    assert [line.count(INTERVAL) for line in lines if "oar_g" in line] == [3, 3]
    assert " ".join(lines).count("set 5") == 1


def test_long_keys_stand_above_their_rows() -> None:
    name = "a_name/" * 20
    header, row = ("run", "metric", "before", "after"), [INTERVAL, "-"]
    lines = rendered(ConsoleTable("t", header, [[name, "x", *row], [name, "yy", *row], ["b", "x", "2", "3"]], keys=2))
    space = " " * (len(INTERVAL) - 6)
    rows = [f"  x       {INTERVAL}  {'-':>5}", f"  yy      {INTERVAL}  {'-':>5}", f"  x       {'2':>{len(INTERVAL)}}  {'3':>5}"]
    assert lines == ["t", "run", f"  metric  {space}before  after", name, *rows[:2], "b", rows[2]]


def test_a_value_that_is_wider_than_the_console_is_whole() -> None:
    long = "x" * 200
    assert rendered(ConsoleTable(long, ("run", "v"), [[long, long]])) == [long, f"run · {long}", f"v · {long}"]


def test_headings_wrap_between_words_only() -> None:
    lines = rendered(ConsoleTable("t", ("k", "measured / floor", "forward-equivalents"), [["x", "1", "2"]]), 45)
    text = "\n".join(lines)
    assert "forward-equivalents" in text
    assert "measured" in text
    assert "measured / floor" not in text


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "[65.2, 71.0]", "数学の問題", "a\x1b[31mb", "\udc80", "two\nlines", ""])
def test_cells_are_text(cell: str) -> None:
    lines = rendered(ConsoleTable(cell, ("k", cell), [[cell, cell]]))
    assert lines[0] == printable(cell)
    assert printable(cell) in lines[-2]
    assert len({cell_len(line) for line in lines[1:]}) == 1
    assert "\x1b" not in "".join(lines)
    "\n".join(lines).encode("utf-8")


@pytest.mark.parametrize("rows", [[], [["x"]]])
def test_no_rows_and_no_values(rows: list[list[str]]) -> None:
    assert "k" in "".join(rendered(ConsoleTable("t", ("k",), rows)))
    assert rendered(ConsoleTable("t", ("k", "v"), []))[0] == "t"


def test_rows_are_as_long_as_the_header() -> None:
    with pytest.raises(ValueError, match="t: a row has 1 cells and the header 2"):
        ConsoleTable("t", ("k", "v"), [["x"]])
