"""The notebook runs, shows its heat-maps, and is kept without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "credit.ipynb"


def test_it_is_kept_without_outputs() -> None:
    assert '"output_type"' not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_runs_and_shows_its_heat_maps(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown: list[Any] = [output.get("data", {}) for cell in book.cells for output in cell.get("outputs", [])]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 2
    assert all(page.startswith("<iframe") for page in pages)
    assert any("[('correct', " in data.get("text/plain", "") for data in shown), "verdicts and advantages of the three"
    assert not list(tmp_path.iterdir()), "nothing is written"
