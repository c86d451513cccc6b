"""Makes parts of the site from the code: the places marked `<!-- generated: name -->` in a page, and docstrings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from config_reference import choices, config_reference
from docstrings import as_rst, without_aliases
from house import house
from metrics import metrics
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
MAKERS: dict[str, Callable[[], str]] = {
    "config": config_reference,
    "experiments": lambda: choices(ROOT / "conf" / "experiment"),
    "house": house,
    "metrics": metrics,
    "sweeps": lambda: choices(ROOT / "sweeps"),
}
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page.startswith("docs/") and MARK.search(source[0]):
        source[0] = MARK.sub(lambda found: MAKERS[found[1]](), source[0])
        app.env.note_reread()  # the code may change where the page does not


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon's
    app.connect("autodoc-skip-member", without_aliases)
    return {"parallel_read_safe": True}
