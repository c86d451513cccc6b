"""Curves: one line an estimator, told apart, broken where there is no number."""

from __future__ import annotations

from support.lab_records import curve, record

from oar_lightning.lab.page.curves import COLORS, curve_plots, line_styles


def test_each_estimator_has_a_line_in_each_figure() -> None:
    found = record()
    found.results["curves"] = {"one": curve(found.ranking), "two": curve(["weak", "foreign"])}
    plots = curve_plots(found)
    one, two = plots.split("<figure>")[1:]
    assert one.count("<path") == 3
    assert two.count("<path") == 2
    assert one.count("<circle") == 8, "the curve of a number that is not there ends before it"
    assert plots.count('<label class="key"') == 4
    assert one.index('"curve control"') < one.index('"curve c0"'), "controls are below"


def test_lines_differ() -> None:
    found = record()
    names = [f"e{i}" for i in range(2 * COLORS)]
    styles = line_styles([*names, "weak"], found)
    assert len(set(styles.values())) == 2 * COLORS + 1
    assert styles["weak"] == "curve control"


def test_without_curves_there_is_nothing() -> None:
    found = record()
    assert curve_plots(found) == ""
    found.results["curves"] = {}
    assert curve_plots(found) == ""
