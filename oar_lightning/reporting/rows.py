"""Runs of a study as rows of a CSV file: named tuples of texts and numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

R = TypeVar("R", bound=NamedTuple)


def read_rows(kind: type[R], path: Path) -> list[R]:
    """The rows of a file that `write_rows` has made; a column that it lacks has its default. An empty number is NaN."""
    read: dict[str, Callable[[str], Any]] = {name: _number if of is float else of for name, of in get_type_hints(kind).items()}
    make: Callable[..., R] = kind
    with path.open(encoding="utf-8", newline="") as file:
        return [make(**{name: read[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def write_rows(kind: type[R], path: Path, rows: Iterable[R]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(kind._fields)
        writer.writerows(["" if value != value else value for value in row] for row in rows)  # NaN is unlike itself


def _number(text: str) -> float:
    return float(text) if text else math.nan
