"""Dots, intervals and ceilings lie where their numbers are."""

from __future__ import annotations

import re

import numpy as np
from support.lab_records import record

from oar_lightning.lab.page.dots import dot_plots


def test_dots_are_in_line_with_the_means() -> None:
    found = record()
    plots = dot_plots(found).split("<figure>")[1:]
    assert len(plots) == len(found.headlines)
    for key, plot in zip(found.headlines, plots, strict=True):
        means = found.results["measures"][key]["means"]
        bounded = [name for name in found.ranking if means[name]["low"] is not None]  # where not all values are equal
        expected = [means[name][part] for name in bounded for part in ("mean", "low", "high")]
        rows = re.findall(r'x1="([\d.]+)" y1="\d+" x2="([\d.]+)" y2="\d+" class="interval".*?circle cx="([\d.]+)"', plot)
        places = [float(v) for low, high, mean in rows for v in (mean, low, high)]
        slope, start = np.polyfit(expected, places, 1)
        assert slope > 0
        np.testing.assert_allclose(np.polyval([slope, start], expected), places, atol=0.11)
        assert plot.count('class="row control"') == 1
        assert plot.count('class="ceiling"') == len(found.results["measures"][key]["ceiling"])
        assert plot.count('class="chance"') == (found.results["measures"][key]["chance"] is not None)


def test_what_is_not_defined_has_no_dot() -> None:
    found = record()
    measure = found.results["measures"][found.headlines[0]]
    measure["means"]["strong"] = {"mean": None, "low": None, "high": None, "n": 0}
    measure["means"]["middle"] |= {"low": None, "high": None}
    plot = dot_plots(found).split("<figure>")[1]
    assert plot.count("<circle") == 2
    assert plot.count('class="interval"') == 1
    assert "strong: not defined" in plot


def test_without_measures_there_is_none() -> None:
    found = record()
    found.results["headlines"].clear()
    assert dot_plots(found) == ""
