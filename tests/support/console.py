"""What a console of a given width shows."""

from __future__ import annotations

import io

from rich.console import Console

from oar_lightning.common.tables import ConsoleTable


def rendered(table: ConsoleTable, width: int = 80) -> list[str]:
    """The lines of a table, without spaces at their ends."""
    console = Console(width=width, file=io.StringIO(), record=True)
    table.print(console)
    return [line.rstrip() for line in console.export_text().splitlines()]
