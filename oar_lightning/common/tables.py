"""Tables on the console that show every cell whole, however narrow the console is."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

BESIDES = 3
"""What a column takes beside its cells: a border and a space on either side; and of a table one border more."""

KEY_WIDTH = 48
"""A key with several words is wrapped between them at so many characters."""

INDENT = 2
"""Spaces before each column where the rows are grouped and have no borders."""


@dataclass(frozen=True)
class ConsoleTable:
    """A titled table. The first `keys` columns name a row and stand on the left; the others are values, on the right.

    Where it is wider than the console, the first keys stand on lines of their own above their rows, and the values are divided
    into several tables, as few as there can be. No cell is cut; only keys are wrapped, between words. (A terminal may wrap a
    cell that is longer than a line.)
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: int = 1
    sections: Sequence[int] = ()
    """Numbers of the rows that have a line above them."""

    def __post_init__(self) -> None:
        if uneven := [row for row in self.rows if len(row) != len(self.header)]:
            raise ValueError(f"{self.title}: a row has {len(uneven[0])} cells and the header {len(self.header)}")

    def print(self, console: Console) -> None:
        console.print(Text(printable(self.title), style="bold"), soft_wrap=True)
        layouts = [(above, self._layout(above, console.width)) for above in range(self.keys + 1)]
        above, parts = min(((above, parts) for above, parts in layouts if parts), key=lambda it: len(it[1]), default=(0, []))
        for columns in parts:
            if above:
                for line in self._grouped(columns, above):
                    console.print(line, soft_wrap=isinstance(line, Text))
            else:
                console.print(self._table(columns, self.rows, box=HEAVY_HEAD, padding=(0, 1)))
        for row in () if parts else self.rows:  # a single value is wider than the console
            for name, cell in zip(self.header, row, strict=True):
                console.print(Text(_line((name, cell))), soft_wrap=True)

    def _layout(self, above: int, width: int) -> list[list[int]]:
        """The columns of each table where the first `above` keys stand above the rows: as few tables as there can be.

        Empty where a value does not fit beside the other keys.
        """
        taken = [own + (INDENT if above else BESIDES) for own in self._widths()]
        keys = list(range(above, self.keys))
        room = width - (0 if above else 1) - sum(taken[i] for i in keys)
        parts: list[list[int]] = [[]]
        for i in range(self.keys, len(self.header)):
            if parts[-1] and sum(taken[j] for j in parts[-1]) + taken[i] > room:
                parts.append([])
            parts[-1].append(i)
        fits = max(taken[self.keys :], default=0) <= room
        return [keys + part for part in parts] if fits else []

    def _grouped(self, columns: Sequence[int], above: int) -> Iterator[RenderableType]:
        """The headings, then the rows with their first keys in lines above them."""
        yield Text(_line(self.header[:above]), style="italic")
        yield self._table(columns, [])
        for key, rows in itertools.groupby(self.rows, lambda row: row[:above]):
            yield Text(_line(key), style="bold")
            yield self._table(columns, list(rows), show_header=False)

    def _widths(self) -> list[int]:
        """Of each column: its longest cell, or word of its heading."""
        words = [printable(name).split() or [""] for name in self.header]
        cells = [[line for row in self.rows for line in self._cell(row, i).split("\n")] for i in range(len(self.header))]
        return [max(map(cell_len, both)) for both in map(list.__add__, words, cells)]

    def _cell(self, row: Sequence[str], column: int) -> str:
        text = printable(row[column])
        return _wrapped(text, KEY_WIDTH) if column < self.keys and cell_len(text) > KEY_WIDTH else text

    def _table(self, columns: Sequence[int], rows: Sequence[Sequence[str]], **style: Any) -> Table:
        table, widths = Table(**{"box": None, "padding": (0, 0, 0, INDENT), **style}), self._widths()
        for i in columns:
            name = Text(_wrapped(printable(self.header[i]), max(1, widths[i])))
            table.add_column(name, justify="left" if i < self.keys else "right", no_wrap=True, min_width=widths[i])
        for number, row in enumerate(rows):
            if number in self.sections:
                table.add_section()
            table.add_row(*(Text(self._cell(row, i)) for i in columns))
        return table


def _wrapped(text: str, width: int) -> str:
    """Wrapped between words only."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _line(cells: Sequence[str]) -> str:
    return " · ".join(map(printable, cells))


def printable(text: str) -> str:
    """The text on one line, with the replacement character in place of what does not print."""
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "\ufffd" for c in text)
