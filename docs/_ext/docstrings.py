"""Docstrings as reStructuredText: they are written as plain text with `code` between backticks."""

from __future__ import annotations

import re
from typing import Any


def as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A handler of autodoc's `autodoc-process-docstring`, to run before napoleon's."""

    lines[:] = [_line(line) for line in lines]


def _line(line: str) -> str:
    parts = re.split(r"(`+[^`]*`+)", line)
    return "".join(
        f"``{part.strip('`')}``" if i % 2 else re.sub(r"([*|])|(?<=\w)_(?!\w)", r"\\\g<0>", part)
        for i, part in enumerate(parts)
    )
