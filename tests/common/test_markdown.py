"""Tables of pages."""

from __future__ import annotations

from oar_lightning.common.markdown import markdown


def test_a_cell_keeps_to_its_column_and_line() -> None:
    assert markdown([["a", "b"], ["x|y", "1"], ["an escaped \\| bar", "two\nlines"]]).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| x\\|y | 1 |",
        "| an escaped \\| bar | two lines |",
    ]
