"""What a config file's first comment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from oar_lightning.command.comments import Header


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("One sentence", "One sentence"),
        ("One sentence. And another.", "One sentence."),
        ("Dr. GRPO: no division (arXiv 2503.20783). More.", "Dr. GRPO: no division (arXiv 2503.20783)."),
        ("To <folder>/, e.g. reports. `x` is more.", "To <folder>/, e.g. reports."),
        ("", ""),
    ],
)
def test_the_first_sentence(words: str, sentence: str) -> None:
    assert Header(None, (), words).sentence == sentence


def test_a_file_that_begins_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("# @package _global_\n# python -m oar_lightning x\n# Two\n# lines.\nkey: 1\n# not this\n")
    assert Header.of(file) == Header("_global_", ("python -m oar_lightning x",), "Two lines.")
    file.write_text("key: 1  # no header\n")
    assert Header.of(file) == Header(None, (), "")
