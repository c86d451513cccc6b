"""Plain text as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable


def escaped(text: str) -> str:
    """The text with what Markdown would read as markup outside of `code`; on one line, fit for a table's cell."""
    parts = re.split(r"(`+[^`]+`+)", " ".join(text.split()))
    plain = [part if i % 2 else re.sub(r"([<>*_\[\]#$])", r"\\\1", part) for i, part in enumerate(parts)]
    return "".join(plain).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
