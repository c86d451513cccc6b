"""The tables of the last batch, which stand in hand-kept blocks of pages of task=report, are means of their runs.csv."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from support.study_scripts import REPORTS

from oar_lightning.reporting.page import MARK
from oar_lightning.reporting.prose import read_prose

COLUMNS = ("credit/ess_ratio", "credit/top10_mass", "entropy")


def block(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return read_prose(text, str(page)).get("last_batch", "") if MARK in text else ""


PAGES = [page for page in sorted(REPORTS.glob("*/README.md")) if block(page)]


def test_there_are_such_pages() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_its_figures_are_means_of_the_runs(page: Path) -> None:
    runs = defaultdict(list)
    with open(page.with_name("runs.csv"), encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["state"] == "complete":
                runs[row["arm"]].append([float(row[column]) for column in COLUMNS])
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block(page).splitlines() if line.startswith("|")]
    shown = {arm: (int(n), [float(cell) for cell in cells]) for arm, n, *cells in table[2:]}
    assert shown.keys() == runs.keys()
    for arm, values in runs.items():
        n, means = shown[arm]
        assert n == len(values)
        assert means == pytest.approx([sum(column) / n for column in zip(*values, strict=True)], abs=0.00051)
