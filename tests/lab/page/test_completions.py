"""The numbers of the strips, and the order of completions, against the record they are made of."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata
from support.html_pages import Page
from support.lab_records import record

from oar_lightning.lab.page import completions
from oar_lightning.lab.page.completions import chosen, data, sections
from oar_lightning.lab.page.record import LabRecord


def wrongness(found: LabRecord) -> list[float]:
    values = found.results["measures"][found.headlines[0]]["values"]
    told = [[values[name][i] for name in ("middle", "strong")] for i in range(len(found.rows))]
    return [math.nan if None in own else float(np.mean(own)) for own in told]


def test_the_most_wrong_is_first_and_the_undefined_last() -> None:
    found = record()
    order = [wrongness(found)[i] for i in chosen(found)]
    known = [v for v in order if not math.isnan(v)]
    assert known == sorted(known)
    assert 0 < len(known) < len(order) == 8
    assert all(math.isnan(v) for v in order[len(known) :])


def test_a_measure_that_is_better_low_turns_the_order() -> None:
    found = record()
    first = chosen(found)
    found.results["measures"][found.headlines[0]]["better"] = "low"
    count = sum(not math.isnan(v) for v in wrongness(found))
    assert chosen(found)[:count] == first[:count][::-1]


def test_a_large_record_is_cut_at_the_most_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    found = record()
    size = len(found.rows[0]["tokens"])
    monkeypatch.setattr(completions, "PAGE_TOKENS", 3 * size)
    whole = chosen(found)
    assert len(whole) == 3
    monkeypatch.setattr(completions, "PAGE_TOKENS", 1)
    assert chosen(found) == whole[:1], "at least one"


def shown(found: LabRecord) -> Any:
    return json.loads(data(found, range(len(found.rows))))


def test_the_numbers_are_the_records() -> None:
    found = record()
    page = shown(found)
    assert [e["name"] for e in page["estimators"]] == found.ranking
    assert [e["control"] for e in page["estimators"]] == [False, True, False]
    assert [t["name"] for t in page["truths"]] == ["monte_carlo", "first_wrong_step"]
    for row, own in zip(found.rows, page["completions"], strict=True):
        for name, said in zip(found.ranking, own["said"], strict=True):
            scores = np.array(row["estimators"][name]["score"])
            np.testing.assert_allclose(said["score"], scores, rtol=1e-3)
            np.testing.assert_allclose(said["advantage"], row["estimators"][name]["advantage"], rtol=1e-3)
            inside = np.array(row["reasoning"], dtype=bool)
            np.testing.assert_array_equal(np.array(said["place"])[inside], rankdata(-np.abs(scores[inside])))
            assert not np.array(said["place"])[~inside].any()
            assert {said["score_shades"][i] for i in np.flatnonzero(~inside)} == {"."}
        np.testing.assert_allclose(own["truths"][0]["value"], row["truths"]["monte_carlo"]["value"], rtol=1e-3, atol=1e-12)
        for truth, name in zip(own["truths"], ("monte_carlo", "first_wrong_step"), strict=True):
            assert [int(c) for c in truth["decisive"]] == row["truths"][name]["decisive"]
            assert [int(c) for c in truth["known"]] == row["truths"][name]["known"]
    for measure, key in zip(range(len(found.headlines)), found.headlines, strict=True):
        values = found.results["measures"][key]["values"]
        assert [own["quality"][measure] for own in page["completions"]] == [
            [values[name][i] for name in found.ranking] for i in range(8)
        ]


def test_numbers_that_are_none_are_told_as_such() -> None:
    found = record()
    found.rows[0]["estimators"]["strong"]["score"][2] = None
    found.rows[0]["probability"][1] = None
    own = shown(found)["completions"][0]
    assert own["said"][0]["score"][2] == "nan"
    assert own["said"][0]["score_shades"][2] == "?"
    assert own["said"][0]["place"][2] == 0
    assert own["p"][1] == "nan"


def test_a_completion_without_tokens() -> None:
    found = record()
    row = found.rows[0]
    row["tokens"].clear()
    for part in (row, *row["truths"].values(), *row["estimators"].values()):
        for key, value in part.items():
            if isinstance(value, list) and key != "halves":
                part[key] = []
    assert "no tokens" in sections(found, [0])
    assert shown(found)["completions"][0]["said"][0]["place"] == []


def test_long_completions_are_folded_but_for_the_first() -> None:
    found = record()
    for row in found.rows:
        row["tokens"] = ["x"] * 200
    page = Page(f"<div>{sections(found, range(4))}</div><script id='data'>0</script>")
    assert ["open" in a for tag, a in page.tags if tag == "details"] == [True, False, False, False]
