"""Tables of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from oar_lightning.common.markdown import MARKS, fill, filled, markdown


def test_a_cell_keeps_to_its_column_and_line() -> None:
    assert markdown([["a", "b"], ["x|y", "1"], ["an escaped \\| bar", "two\nlines"]]).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| x\\|y | 1 |",
        "| an escaped \\| bar | two lines |",
    ]


def test_what_is_generated_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page, (start, end) = tmp_path / "README.md", MARKS
    page.write_text(f"# A page\n{start}\nold\n{end}\nby hand\n{start}\n{end}\n")
    fill(page, "one \\1", "two")
    assert page.read_text() == f"# A page\n{start}\none \\1\n{end}\nby hand\n{start}\ntwo\n{end}\n"
    assert filled(page) == "one \\1"
    with pytest.raises(ValueError, match=r"has 2 pairs of .* where 1 are filled"):
        fill(page, "one")
