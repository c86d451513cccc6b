"""A lab's folder of reports/."""

from __future__ import annotations

import json
from pathlib import Path

from support.lab_records import record, renamed, write

from oar_lightning.lab.page.record import PAGE, RESULTS, LabRecord
from oar_lightning.lab.page.report import readme, write_report


def test_it_can_be_rendered_again_and_hides_where_results_are_kept(tmp_path: Path) -> None:
    found = record()
    found.results["settings"] = {"logger": {"tracking_uri": "sqlite:///mine"}, "seed": 3}  # type: ignore[index]
    run, report = tmp_path / "run", tmp_path / "reports" / "one"
    run.mkdir()
    write(found, run)
    (run / PAGE).write_text("page")
    write_report(report, run, found, "python -m oar_lightning task=lab", ["logger"])
    again = LabRecord.read(report)
    assert again.rows == found.rows
    assert again.results == {**found.results, "settings": {"seed": 3}}
    assert "mine" not in (report / RESULTS).read_text()
    assert (report / PAGE).read_text() == "page"
    write_report(report, report, again, None, [])
    assert json.loads((report / RESULTS).read_text())["settings"] == {"seed": 3}


def test_the_table() -> None:
    found = record()
    text = readme(found, None)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["strong", "weak (control)", "middle"]
    mean = found.results["measures"][found.headlines[0]]["means"]["strong"]
    assert rows[2].split("|")[2].strip() == f"{mean['mean']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]"
    assert "Made by" not in text
    assert "stopped" not in text
    assert "stopped" in readme(LabRecord({**found.results, "whole": False}, found.rows), None)


def test_a_name_does_not_end_its_cell() -> None:
    rows = readme(renamed(record(), "strong", "a|b\nc"), None).splitlines()
    assert "| a\\|b c |" in next(row for row in rows if "a\\|b" in row)
