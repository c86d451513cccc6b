"""Markers: what is hand-written survives, and a slip is told instead of losing text."""

from __future__ import annotations

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.reporting.prose import prose, read_prose, with_generated


def test_blocks_are_read_back_as_they_were_written() -> None:
    texts = {"question": "Why?", "findings": "One.\n\nTwo | three, `$x$` \\1.", "empty": ""}
    page = "\n\n".join(["# Title", *(prose(name, text) for name, text in texts.items()), "the end"])
    assert read_prose(page, "page") == texts


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- prose: a -->\ntext", "do not come in pairs"),
        ("text\n<!-- /prose -->", "do not come in pairs"),
        ("<!-- prose: a -->\none\n<!-- prose: b -->\ntwo\n<!-- /prose -->", "do not come in pairs"),
        ("<!-- prose: a b -->\ntext\n<!-- /prose -->", "do not come in pairs"),
        (prose("a", "one") + prose("a", "two"), "two prose blocks called a"),
    ],
)
def test_broken_markers_are_an_error(page: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_prose(page, "reports/x/README.md")
    assert str(caught.value).startswith("reports/x/README.md: ")


def test_the_generated_part_is_added_at_the_end_and_then_replaced_where_it_stands() -> None:
    first = with_generated("# Studies\n\n| a | b |\n", "one \\1")
    assert first == "# Studies\n\n| a | b |\n\n<!-- generated: studies -->\none \\1\n<!-- /generated -->\n"
    assert with_generated(first, "one \\1") == first
    moved = first + "\nwritten below\n"
    assert with_generated(moved, "two") == moved.replace("one \\1", "two")
