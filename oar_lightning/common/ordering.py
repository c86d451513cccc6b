"""Orders in which people read names, and names that can be told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key in which 2 comes before 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def numbered(names: Sequence[str]) -> list[str]:
    """The names, of which those that came before get a number: `a`, `a_2`, `a_3`."""
    taken: dict[str, None] = {}
    for name in names:
        free, number = name, 2
        while free in taken:
            free, number = f"{name}_{number}", number + 1
        taken[free] = None
    return list(taken)
