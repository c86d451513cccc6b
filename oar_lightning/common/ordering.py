"""Orders in which people read names."""

from __future__ import annotations

import re


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key in which 2 comes before 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]
