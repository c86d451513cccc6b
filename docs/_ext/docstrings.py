"""Docstrings as reStructuredText: they are written as plain text with `code` between backticks."""

from __future__ import annotations

import re
from typing import Any


def as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A handler of autodoc's `autodoc-process-docstring`, to run before napoleon's."""
    lines[:] = [_escaped(_legend(line) if what == "module" else line) for line in lines]


def without_aliases(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """A handler of `autodoc-skip-member`: the fields of a named tuple say "Alias for field number 0" of themselves."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def _legend(line: str) -> str:
    """`B  completions in a batch` as a line that stands for itself."""
    found = re.fullmatch(r"(\w[\w -]*?) {2,}(\S.*)", line)
    return f"| `{found[1]}` {found[2]}" if found else line


def _escaped(line: str) -> str:
    start, rest = ("| ", line[2:]) if line.startswith("| ") else ("", line)
    parts = re.split(r"(`+[^`]*`+)", rest)
    for i, part in enumerate(parts):
        parts[i] = f"``{part.strip('`')}``" if i % 2 else re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part)
    return start + "".join(parts)
